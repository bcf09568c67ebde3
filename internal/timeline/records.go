package timeline

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// oneWay are the verbs whose callers do not wait for all other ranks: in them the rank that calls
// last is not the one that the others waited for.
var oneWay = map[string]bool{
	"broadcast": true, "reduce": true, "scatter": true, "gather": true, "broadcast_tensor": true, "broadcast_tensors": true,
}

// records finds the verbs that ranks called together, which rank arrived last at each, and how long
// the others waited.
func (t *Timeline) records() {
	all := map[recordKey]*Record{}
	for _, r := range t.Rows {
		for i := range r.Events {
			e := &r.Events[i]
			e.Wait = min(max(e.Waited, 0), e.Duration())
			k, ok := keyOf(&e.Event)
			if !ok {
				continue
			}
			rec := all[k]
			if rec == nil {
				rec = &Record{Op: e.Op, Group: e.Group, Channel: e.Channel, Seq: e.Seq, Last: -1, End: e.End}
				all[k] = rec
			}
			rec.Calls = append(rec.Calls, Call{r, i})
			rec.Failed = rec.Failed || e.Err != nil
			rec.Inner = rec.Inner || e.Inner
			if e.End.Before(rec.End) {
				rec.End = e.End
			}
		}
	}
	t.Records = slices.Collect(maps.Values(all))
	for _, rec := range t.Records {
		rec.judge(t.members)
	}
	slices.SortFunc(t.Records, func(a, b *Record) int {
		return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Group, b.Group))
	})
}

// judge determines which rank arrived last: from the store's answer, or from the start times if all
// ranks are present.
func (rec *Record) judge(members map[member]*Row) {
	slices.SortFunc(rec.Calls, func(a, b Call) int { return cmp.Compare(a.Of().Rank, b.Of().Rank) })
	said := -1
	for _, c := range rec.Calls {
		if e := c.Of(); e.Last >= 0 {
			said = e.Last
		}
	}
	_, verb, _ := strings.Cut(rec.Op, ".")
	switch {
	case said >= 0:
		if rec.Last = slices.IndexFunc(rec.Calls, func(c Call) bool { return c.Of().Rank == said }); rec.Last < 0 {
			rec.Absent = members[member{rec.Calls[0].Of().ID, said}]
		}
	case len(rec.Calls) == rec.Calls[0].Of().Size && (!oneWay[verb] || isJoin(rec.Op)):
		rec.Last = rec.latest()
	}
	if rec.Last < 0 {
		// the rank that they waited for did not call, or its trace is missing
		for _, c := range rec.Calls {
			rec.Waited += c.Of().Wait
		}
		return
	}
	came := rec.Calls[rec.Last].Of().Start
	for i, c := range rec.Calls {
		e := c.Of()
		if e.Wait = min(max(came.Sub(e.Start), 0), e.Duration()); i == rec.Last {
			e.Wait = 0
		}
		rec.Waited += e.Wait
	}
}

// latest returns the call that began last.
func (rec *Record) latest() (last int) {
	for i, c := range rec.Calls {
		if c.Of().Start.After(rec.Calls[last].Of().Start) {
			last = i
		}
	}
	return last
}

// Summary is how long the ranks of a job waited for each other.
type Summary struct {
	Ranks   []RankSummary // the rank that the others waited for longest is first
	Records int           // verbs that ranks called together
	Failed  int           // the part of Records that failed
	Lost    time.Duration // total waiting time of all ranks
	Absent  time.Duration // the part of Lost for ranks whose traces are missing
	Took    time.Duration // from the first event to the last
}

// RankSummary is one rank's part in a Summary.
type RankSummary struct {
	Row    *Row
	Last   int           // how often it arrived last, or did not arrive
	Caused time.Duration // total time that the others waited for it then
	Waited time.Duration // total time that it waited for others
	Worst  *Record       // the record with the longest wait for it; nil: none
}

// Summary counts each wait once: it does not count the verbs that a verb of package gather,
// collective or dataparallel consists of.
func (t *Timeline) Summary() Summary {
	s := Summary{Took: t.End.Sub(t.Start)}
	of := map[*Row]int{}
	for i, r := range t.Rows {
		of[r] = i
		s.Ranks = append(s.Ranks, RankSummary{Row: r})
	}
	for _, rec := range t.Records {
		if rec.Inner {
			continue
		}
		s.Records++
		s.Lost += rec.Waited
		if rec.Failed {
			s.Failed++
		}
		for _, c := range rec.Calls {
			s.Ranks[of[c.Row]].Waited += c.Of().Wait
		}
		blamed := rec.Blamed()
		if blamed == nil {
			s.Absent += rec.Waited
			continue
		}
		last := &s.Ranks[of[blamed]]
		last.Last++
		last.Caused += rec.Waited
		if rec.Waited > 0 && (last.Worst == nil || rec.Waited > last.Worst.Waited) {
			last.Worst = rec
		}
	}
	slices.SortStableFunc(s.Ranks, func(a, b RankSummary) int { return cmp.Compare(b.Caused, a.Caused) })
	return s
}

// String returns the record's name, such as "barrier #3 of world".
func (rec *Record) String() string {
	s := strings.TrimPrefix(rec.Op, "pgroup.")
	if rec.Seq > 0 {
		s += fmt.Sprintf(" #%d", rec.Seq)
	}
	if rec.Channel != "" && rec.Channel != shutdown {
		s += " on " + rec.Channel
	}
	return s + " of " + rec.Group
}
