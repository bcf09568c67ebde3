package timeline

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/trace"
)

// oneWay are the verbs whose callers need not wait for all others, or for nobody but a root: the last to call is not whom they waited for.
var oneWay = map[string]bool{
	"broadcast": true, "reduce": true, "scatter": true, "gather": true, "broadcast_tensor": true, "broadcast_tensors": true,
}

// records finds the verbs that ranks called together, who came last to each, and how long the others waited.
func (t *Timeline) records() {
	all := map[recordKey]*Record{}
	unmet := t.unmet()
	for _, r := range t.Rows {
		for i := range r.Events {
			e := &r.Events[i]
			e.Wait = min(max(e.Waited, 0), e.Duration())
			k, ok := keyOf(&e.Event)
			if k.unmet = unmet[&e.Event]; !ok && k.unmet == 0 {
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
		rec.judge(t.seats)
	}
	slices.SortFunc(t.Records, func(a, b *Record) int {
		return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Group, b.Group))
	})
}

func (t *Timeline) unmet() map[*trace.Event]uint64 {
	var all []*trace.Event
	for _, r := range t.Rows {
		for i := range r.Events {
			all = append(all, &r.Events[i].Event)
		}
	}
	return unmet(all)
}

// judge finds who came last, by what the store said, or by when each came if all are there.
func (rec *Record) judge(seats map[seat]*Row) {
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
			rec.Absent = seats[seat{rec.Calls[0].Of().ID, said}]
		}
	case len(rec.Calls) == rec.Calls[0].Of().Size && (!oneWay[verb] || isJoin(rec.Op)):
		rec.Last = rec.latest(-1)
	}
	if rec.Last < 0 {
		for _, c := range rec.Calls { // whom they waited for did not come, or has no trace here
			rec.Waited += c.Of().Wait
		}
		rec.Alone = rec.Calls[rec.latest(-1)].Of().Start
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
	rec.Alone = came
	if i := rec.latest(rec.Last); i >= 0 && rec.Calls[i].Of().Start.Before(came) {
		rec.Alone = rec.Calls[i].Of().Start
	}
}

// latest is the call that began last, but for one.
func (rec *Record) latest(but int) int {
	last := -1
	for i, c := range rec.Calls {
		if i != but && (last < 0 || c.Of().Start.After(rec.Calls[last].Of().Start)) {
			last = i
		}
	}
	return last
}

// Summary is who the others waited for.
type Summary struct {
	Ranks   []RankSummary // those that the others waited for longest first
	Records int           // verbs that ranks called together
	Failed  int           // of them
	Lost    time.Duration // all waiting of all ranks
	Absent  time.Duration // of it, for ranks whose traces are not there
	Took    time.Duration // from the first event to the last
}

// RankSummary is one rank's part in it.
type RankSummary struct {
	Row    *Row
	Last   int           // how often it came last, or not at all
	Caused time.Duration // how long the others waited for it then, all together
	Waited time.Duration // and how long it waited for others
	Worst  *Record       // for which they waited longest; nil: none
}

// Summary counts each wait once: what a verb of package gather, collective or strategy is made of is not counted again.
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
