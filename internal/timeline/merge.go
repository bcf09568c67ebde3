package timeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/trace"
)

// Timeline is the events of a job's ranks, on one clock: that of its first row.
type Timeline struct {
	Rows       []*Row
	Records    []*Record // the verbs that ranks called together, in the order of their decisions
	Start, End time.Time

	members map[member]*Row
}

// Row is one rank: a process, or one of several ranks in a process.
type Row struct {
	Rank  int // in the largest of its groups
	Host  string
	PID   int
	Files []*File
	// how far its clock was ahead of the first row's, in the middle of the job
	Clock     time.Duration
	Unaligned bool // it has no verb in common with the others, so its clock is used as it is
	Truncated bool
	Events    []Event // ordered by their start
}

// Event is a trace.Event on the common clock.
type Event struct {
	trace.Event
	Wait  time.Duration // the part of it spent waiting for others: its beginning, or all of it
	Inner bool          // it is part of another event of this row, of a package above, or internal
}

// Record is one verb of a group.
type Record struct {
	Op, Group, Channel string
	Seq                uint64
	Calls              []Call // of the ranks whose traces are present, ordered by rank
	Last               int    // index in Calls of the rank that arrived last; -1 if unknown
	// a row that did not call although its trace is present: the others waited for it in vain
	Absent *Row
	Waited time.Duration
	End    time.Time // when the first rank had the answer
	Failed bool
	Inner  bool
}

// Call is the part of one row in a Record.
type Call struct {
	Row   *Row
	Event int // index in Row.Events
}

// Blamed returns the row that the others waited for. It is nil if that is unknown, or if its trace
// is missing.
func (rec *Record) Blamed() *Row {
	if rec.Last >= 0 {
		return rec.Calls[rec.Last].Row
	}
	return rec.Absent
}

// Of returns the event of a call.
func (c Call) Of() *Event { return &c.Row.Events[c.Event] }

// recordKey identifies the record of a call: it is equal for all calls of one record.
type recordKey struct {
	id, generation, seq uint64
	op, group, channel  string
}

// keyOf returns the key of the record that e is part of; ok is false if e is not part of a record
// of several ranks.
func keyOf(e *trace.Event) (k recordKey, ok bool) {
	family, verb, _ := strings.Cut(e.Op, ".")
	k = recordKey{id: e.ID, generation: e.Generation, seq: e.Seq, op: e.Op, group: e.Group, channel: e.Channel}
	switch {
	case e.Size < 2 || verb == "send" || verb == "recv" || verb == "close" || verb == "abort" || verb == "expire":
		return k, false
	case isJoin(e.Op):
		return k, e.ID != 0
	}
	return k, e.Seq != 0 && family != "store"
}

func isJoin(op string) bool {
	return op == "pgroup.create" || op == "pgroup.sub" || op == "pgroup.shrink"
}

// Jobs splits files by job. Files of different jobs have no process and no group in common. The latest
// job is first.
func Jobs(files []*File) [][]*File {
	type bond struct {
		id      uint64
		process string
	}
	job := map[bond]int{} // index in jobs of what files may have in common
	var jobs [][]*File    // an element is nil once it has been merged into another one
	place := map[*File]int{}
	for n, f := range files {
		place[f] = n
		at := len(jobs)
		jobs = append(jobs, []*File{f})
		bonds := []bond{{process: f.Process}}
		for i := range f.Events {
			bonds = append(bonds, bond{id: f.Events[i].ID})
		}
		for _, b := range bonds {
			other, ok := job[b]
			switch {
			case b == bond{} || ok && other == at:
			case ok:
				jobs[at], jobs[other] = append(jobs[other], jobs[at]...), nil
				for b, n := range job {
					if n == other {
						job[b] = at
					}
				}
			default:
				job[b] = at
			}
		}
	}
	jobs = slices.DeleteFunc(jobs, func(j []*File) bool { return j == nil })
	for _, j := range jobs {
		slices.SortFunc(j, func(a, b *File) int { return cmp.Compare(place[a], place[b]) })
	}
	slices.SortStableFunc(jobs, func(a, b []*File) int { return startOf(b).Compare(startOf(a)) })
	return jobs
}

func startOf(files []*File) time.Time {
	return slices.MinFunc(files, func(a, b *File) int { return a.Start.Compare(b.Start) }).Start
}

// Merge merges the traces of one job, in the order of their ranks. Some ranks may be missing. If
// the files are of several jobs, it returns ErrJobs.
//
// The clocks of different hosts differ, by seconds where they are not synchronized, and they drift.
// Merge corrects them by the verbs that wait for all ranks, such as a barrier. Such a verb is
// decided at one moment, and its answer reaches all ranks within about half a round trip. So its
// true end times are about equal on all ranks, and the differences between the recorded ones are
// those of the clocks. For each clock and each piece of 10 s, Merge takes the median of these
// differences, and interpolates linearly between the middles of the pieces. So a single late
// answer, or a clock that runs too fast, does no harm. Ranks that have no verb in common with the
// first rank are set by way of others, and processes of one host have one clock. This needs no
// support of the ranks while they run, and is accurate to a fraction of a millisecond in one
// network.
func Merge(files ...*File) (*Timeline, error) {
	if len(files) == 0 {
		return nil, errors.New("timeline: there is no file")
	}
	if jobs := Jobs(files); len(jobs) > 1 && hasGroups(jobs[0]) && hasGroups(jobs[1]) {
		return nil, fmt.Errorf("timeline: %w: %s and %s have no group in common", ErrJobs, jobs[0][0].Name, jobs[1][0].Name)
	}
	t := &Timeline{}
	if err := t.rows(files); err != nil {
		return nil, err
	}
	t.align()
	for _, r := range t.Rows {
		r.sort()
	}
	t.records()
	t.bounds()
	return t, nil
}

func hasGroups(files []*File) bool {
	return slices.ContainsFunc(files, func(f *File) bool {
		return slices.ContainsFunc(f.Events, func(e trace.Event) bool { return e.ID != 0 })
	})
}

// member is a rank of a group.
type member struct {
	id   uint64
	rank int
}

func (f *File) members() map[member]bool {
	all := map[member]bool{}
	for i := range f.Events {
		if e := &f.Events[i]; e.ID != 0 {
			all[member{e.ID, e.Rank}] = true
		}
	}
	return all
}

// rows makes a row for each process. A process may have several files, one for each group that it
// created. If files of one process are of different ranks of one group, its ranks are goroutines,
// and each has a row.
func (t *Timeline) rows(files []*File) error {
	type process struct {
		host, id string
		pid      int
	}
	rows := map[process][]*Row{}
	ranks := map[*Row]map[uint64]int{} // by group
	sizes := map[*Row]int{}
	for _, f := range files {
		p, members := process{f.Host, f.Process, f.PID}, f.members()
		i := slices.IndexFunc(rows[p], func(r *Row) bool {
			for s := range members {
				if rank, in := ranks[r][s.id]; in && rank != s.rank {
					return false
				}
			}
			return true
		})
		if i < 0 {
			i = len(rows[p])
			rows[p] = append(rows[p], &Row{Rank: -1, Host: f.Host, PID: f.PID})
			t.Rows = append(t.Rows, rows[p][i])
			ranks[rows[p][i]] = map[uint64]int{}
		}
		r := rows[p][i]
		for s := range members {
			ranks[r][s.id] = s.rank
		}
		r.Files = append(r.Files, f)
		r.Truncated = r.Truncated || f.Truncated
		for i := range f.Events {
			if e := &f.Events[i]; e.Size > sizes[r] {
				sizes[r], r.Rank = e.Size, e.Rank
			}
		}
	}
	// as unsigned numbers, −1 is last
	slices.SortStableFunc(t.Rows, func(a, b *Row) int { return cmp.Compare(uint(a.Rank), uint(b.Rank)) })
	return t.twice()
}

// twice rejects two processes that have both been the same rank of a group, and a file that occurs
// twice.
func (t *Timeline) twice() error {
	t.members = map[member]*Row{}
	for _, r := range t.Rows {
		for n, f := range r.Files {
			if i := slices.IndexFunc(r.Files[:n], f.same); i >= 0 {
				return fmt.Errorf("timeline: %s and %s are the same trace", r.Files[i].Name, f.Name)
			}
			for i := range f.Events {
				s := member{f.Events[i].ID, f.Events[i].Rank}
				other := t.members[s]
				switch {
				case s.id == 0 || other == r:
				case other != nil:
					return fmt.Errorf("timeline: rank %d of group %q is there twice, in %s and %s", s.rank, f.Events[i].Group, other.Files[0].Name, f.Name)
				default:
					t.members[s] = r
				}
			}
		}
	}
	return nil
}

// same reports whether f and o, of one process, have the same events.
func (f *File) same(o *File) bool {
	return f.Start.Equal(o.Start) && len(f.Events) > 0 && len(o.Events) > 0 && f.Events[0].Op == o.Events[0].Op && f.Events[0].Start.Equal(o.Events[0].Start)
}

// level returns how high the package of an operation is: its operations may consist of operations
// of lower packages.
func level(op string) int {
	family, _, _ := strings.Cut(op, ".")
	switch family {
	case "store":
		return 0
	case "pgroup":
		return 1
	case "gather", "collective":
		return 2
	case "dataparallel":
		return 3
	}
	return 4
}

// sort orders the events, and finds those that are part of others.
func (r *Row) sort() {
	slices.SortStableFunc(r.Events, func(a, b Event) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(level(b.Op), level(a.Op))) })
	var ends [5]time.Time // by level, of the events that have begun
	for i := range r.Events {
		e := &r.Events[i]
		n := level(e.Op)
		e.Inner = behindTheScenes(e.Channel)
		for above := n + 1; above < len(ends); above++ {
			e.Inner = e.Inner || !e.End.After(ends[above])
		}
		if e.End.After(ends[n]) {
			ends[n] = e.End
		}
	}
}

// behindTheScenes reports whether a channel is internal to muster's packages. Shutdowns are shown
// all the same.
func behindTheScenes(channel string) bool {
	return strings.HasPrefix(channel, "\x00") && channel != shutdown
}

const shutdown = "\x00shutdown"

func (t *Timeline) bounds() {
	for _, r := range t.Rows {
		for i := range r.Events {
			e := &r.Events[i]
			if t.Start.IsZero() || e.Start.Before(t.Start) {
				t.Start = e.Start
			}
			if e.End.After(t.End) {
				t.End = e.End
			}
		}
	}
}
