package timeline

import (
	"cmp"
	"slices"
	"time"
)

// clockPiece is for how long one setting of a clock is good: one that is wrong by 50 µs in a second, which is a bad one, moves by 0.5 ms.
const clockPiece = 10 * time.Second

// settable are the verbs that end on all ranks at once.
var settable = map[string]bool{
	"pgroup.create": true, "pgroup.sub": true, "pgroup.shrink": true, "pgroup.barrier": true, "pgroup.allgather": true, "pgroup.gather": true,
	"pgroup.alltoall": true, "pgroup.allreduce": true, "pgroup.split": true, "pgroup.shutdown": true,
}

// sample says that a clock was wrong by much at a time of its own.
type sample struct{ at, by time.Duration }

// clock is what sets a file's times: the knots of a line.
type clock struct {
	zero  time.Time
	knots []sample
	unset bool // there was nothing to set it by
}

// oneClock is how far processes of one host may seem to differ: that is how soon each was told, since they have one clock.
const oneClock = 5 * time.Millisecond

// near tells whether c may be the same clock as other.
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

// align sets the clocks of all files, and fills the rows with events on the first row's.
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
			if at = c.of(at); known[k].IsZero() || at.Before(known[k]) { // the first to hear is closest to when it was decided
				known[k] = at
			}
		}
	}
	for _, r := range t.Rows {
		r.fill(clocks)
	}
}

// common are the ends of what ends on all ranks at once.
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

// closest is a file that has most in common with those that are set, or enough; the first one if none has anything.
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

// set finds how wrong a clock was, and when.
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

// of is a time of this clock on that of all.
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

// generation is of a group, on a store of which others may have one of that name and number, too.
type generation struct {
	group  string
	number uint64
}

// ids tell generations from those of other stores. Package pgroup says them, and packages on top do not.
func (f *File) ids() map[generation]uint64 {
	all := map[generation]uint64{}
	for i := range f.Events {
		if e := &f.Events[i]; e.ID != 0 {
			all[generation{e.Group, e.Generation}] = e.ID
		}
	}
	return all
}

// fill gives the row its events, on the clock of all.
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
