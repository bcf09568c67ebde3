package timeline

import (
	"cmp"
	"slices"
	"time"
)

// clockPiece is the length of a piece of the timeline with one correction of a clock. A bad clock,
// which drifts by 50 µs per second, drifts by 0.5 ms in that time.
const clockPiece = 10 * time.Second

// settable are the verbs that end on all ranks at about the same time.
var settable = map[string]bool{
	"pgroup.create": true, "pgroup.sub": true, "pgroup.shrink": true, "pgroup.barrier": true, "pgroup.allgather": true, "pgroup.gather": true,
	"pgroup.alltoall": true, "pgroup.allreduce": true, "pgroup.split": true, "pgroup.shutdown": true,
}

// sample is the error of a clock at one of its times.
type sample struct{ at, by time.Duration }

// clock corrects the times of a file: it is a piecewise linear function, given by its knots.
type clock struct {
	zero  time.Time
	knots []sample
	unset bool // there was no common event to set it by
}

// oneClock is the maximum difference between the corrections of processes of one host, which share
// a clock: it comes from delays of the store's answers.
const oneClock = 5 * time.Millisecond

// near reports whether c may be the same clock as other.
func (c *clock) near(other *clock) bool {
	for _, k := range c.knots {
		if (k.by - other.by(k.at+c.zero.Sub(other.zero))).Abs() > oneClock {
			return false
		}
	}
	return true
}

// copy makes c the same clock as other.
func (c *clock) copy(other *clock) {
	c.knots, c.unset = slices.Clone(other.knots), other.unset
	for i := range c.knots {
		c.knots[i].at -= c.zero.Sub(other.zero)
	}
}

// align sets the clocks of all files, and fills the rows with events on the first row's clock.
func (t *Timeline) align() {
	ends := map[*File]map[recordKey]time.Time{}
	var left []*File
	for _, r := range t.Rows {
		for _, f := range r.Files {
			ends[f] = f.common()
			left = append(left, f)
		}
	}
	clocks := map[*File]*clock{}
	hosts := map[string]*clock{}
	known := map[recordKey]time.Time{} // when records were decided
	for len(left) > 0 {
		f, n := closest(left, ends, known)
		left = slices.DeleteFunc(left, func(x *File) bool { return x == f })
		c := &clock{zero: f.Start, unset: n == 0 && len(clocks) > 0}
		c.set(ends[f], known)
		if other := hosts[f.Host]; other != nil && (c.unset || c.near(other)) {
			c.copy(other)
		}
		clocks[f], hosts[f.Host] = c, c
		for k, at := range ends[f] {
			// the first answer is closest to the time of the decision
			if at = c.of(at); known[k].IsZero() || at.Before(known[k]) {
				known[k] = at
			}
		}
	}
	for _, r := range t.Rows {
		r.fill(clocks)
	}
}

// common returns the end times of the verbs that end on all ranks at about the same time.
func (f *File) common() map[recordKey]time.Time {
	ends := map[recordKey]time.Time{}
	for i := range f.Events {
		e := &f.Events[i]
		if k, ok := keyOf(e); ok && settable[e.Op] && e.Err == nil {
			ends[k] = e.End
		}
	}
	return ends
}

// closest returns the file with the most events in common with the files that are set, or with
// enough of them. It returns the first file if none has any.
func closest(left []*File, ends map[*File]map[recordKey]time.Time, known map[recordKey]time.Time) (best *File, most int) {
	for _, f := range left {
		n := 0
		for k := range ends[f] {
			if _, ok := known[k]; ok {
				n++
			}
		}
		if best == nil || n > most {
			best, most = f, n
		}
		if most > 0 && 2*most >= len(ends[f]) {
			break
		}
	}
	return best, most
}

// set determines the error of a clock over time.
func (c *clock) set(ends, known map[recordKey]time.Time) {
	var all []sample
	for k, at := range ends {
		if truth, ok := known[k]; ok {
			all = append(all, sample{at.Sub(c.zero), truth.Sub(at)})
		}
	}
	slices.SortFunc(all, func(a, b sample) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].at-all[0].at < clockPiece {
			n++
		}
		c.knots = append(c.knots, sample{
			median(all[:n], func(s sample) time.Duration { return s.at }), median(all[:n], func(s sample) time.Duration { return s.by }),
		})
		all = all[n:]
	}
}

func median(all []sample, of func(sample) time.Duration) time.Duration {
	ds := make([]time.Duration, len(all))
	for i, s := range all {
		ds[i] = of(s)
	}
	slices.Sort(ds)
	return (ds[(len(ds)-1)/2] + ds[len(ds)/2]) / 2
}

// of converts a time of this clock to the common clock.
func (c *clock) of(t time.Time) time.Time { return t.Add(c.by(t.Sub(c.zero))) }

func (c *clock) by(at time.Duration) time.Duration {
	if len(c.knots) == 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(c.knots, at, func(s sample, at time.Duration) int { return cmp.Compare(s.at, at) })
	switch {
	case i == 0:
		return c.knots[0].by
	case i == len(c.knots):
		return c.knots[i-1].by
	}
	a, b := c.knots[i-1], c.knots[i]
	return a.by + time.Duration(float64(b.by-a.by)*float64(at-a.at)/float64(b.at-a.at))
}

// generation is a generation of a group. Another store may have one of the same name and number.
type generation struct {
	group  string
	number uint64
}

// ids maps generations to ids that are unique across stores. Events of package pgroup have them;
// those of packages on top do not.
func (f *File) ids() map[generation]uint64 {
	all := map[generation]uint64{}
	for i := range f.Events {
		if e := &f.Events[i]; e.ID != 0 {
			all[generation{e.Group, e.Generation}] = e.ID
		}
	}
	return all
}

// fill sets the events of the row, on the common clock.
func (r *Row) fill(clocks map[*File]*clock) {
	for n, f := range r.Files {
		c := clocks[f]
		r.Unaligned = r.Unaligned || c.unset
		if n == 0 && len(f.Events) > 0 {
			middle := f.Events[len(f.Events)/2].End
			r.Clock = -c.by(middle.Sub(c.zero))
		}
		ids := f.ids()
		for _, e := range f.Events {
			e.Start, e.End = c.of(e.Start), c.of(e.End)
			if e.ID == 0 && e.Generation != 0 {
				e.ID = ids[generation{e.Group, e.Generation}]
			}
			r.Events = append(r.Events, Event{Event: e})
		}
		for i := range f.spans {
			s := &f.spans[i]
			at := f.Start.Add(micros(s.TS))
			if s.at = c.of(at); s.Dur != nil {
				s.end = c.of(at.Add(micros(*s.Dur)))
			}
		}
	}
}
