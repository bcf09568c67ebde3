package membership

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
)

const (
	mostChanges = 16 // of a history
	mostNamed   = 8  // workers that a change names in each of its lists
	mostID      = 64 // bytes of a worker's ID there
)

// History is what has changed in a job. The worker that decides views keeps it in the store, for people: no
// worker depends on it, and a change is missing if the worker that decided it failed before it wrote, and no
// later decider was there.
type History struct {
	Run     string   // of the views: a history with another one is of an earlier job of this name
	Changes int      // since the first view, which is one
	Seconds float64  // without a view, in all of them
	Newest  []Change // at most 16, the newest last
}

// Change is how a view came about.
type Change struct {
	Generation uint64 // of the view
	Time       int64  // when the worker that wrote this received the view, in Unix milliseconds of its clock
	Workers    int    // of the view

	Joined Names `json:",omitzero"`
	Lost   Names `json:",omitzero"`
	Left   Names `json:",omitzero"`
	// Seconds is the time from the end of the view before until this one. It is 0 if that has not ended before.
	Seconds float64
}

// Names are workers of a view, by rank.
type Names struct {
	N   int      // their number
	IDs []string // of the first 8, cut at 64 bytes
}

func (n *Names) add(id string) {
	if n.N++; n.N > mostNamed {
		return
	}
	if len(id) > mostID {
		id = strings.ToValidUTF8(id[:mostID], "") + "…"
	}
	n.IDs = append(n.IDs, id)
}

func (n Names) String() string {
	text := strings.Join(n.IDs[:min(len(n.IDs), mostNamed)], ", ")
	if more := n.N - len(n.IDs); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// String describes c, as "view 7 of size 3: lost b; joined c (no view for 0.6 s)". It is "" if c is zero.
func (c Change) String() string {
	if c.Generation == 0 {
		return ""
	}
	var parts []string
	say := func(what string, who Names) {
		if who.N > 0 {
			parts = append(parts, what+" "+who.String())
		}
	}
	say("lost", c.Lost)
	say("left", c.Left)
	say("joined", c.Joined)
	text := fmt.Sprintf("view %d of size %d: %s", c.Generation, c.Workers, strings.Join(parts, "; "))
	if c.Seconds > 0 {
		text += fmt.Sprintf(" (no view for %v s)", c.Seconds)
	}
	return text
}

// change returns how v followed the view e, which is nil if v is the first. The caller holds the Member's mu.
func (e *viewState) change(v *record) Change {
	c := Change{Generation: v.Generation, Time: time.Now().UnixMilli(), Workers: len(v.Slots)}
	if e == nil {
		e = &viewState{}
	}
	for _, s := range e.Slots {
		switch {
		case v.rank(s.Key) >= 0:
		case e.left[s.Key]:
			c.Left.add(s.ID)
		default:
			c.Lost.add(s.ID)
		}
	}
	for _, s := range v.Slots {
		if e.record.rank(s.Key) < 0 {
			c.Joined.add(s.ID)
		}
	}
	if !e.over.IsZero() {
		c.Seconds = time.Since(e.over).Round(time.Millisecond).Seconds()
	}
	return c
}

// seen returns the change to the view v, which follows the current one, and keeps it. It is zero if v was there
// when this worker registered. The caller holds mu.
func (m *Member) seen(v *record) (c Change) {
	before := cmp.Or(m.current, m.found)
	if before == nil && v.Generation > 1 || before != nil && before.Generation >= v.Generation {
		return c
	}
	c = before.change(v)
	m.changes = append(m.changes[max(0, len(m.changes)+1-mostChanges):], c)
	return c
}

// add adds a change, unless h has it.
func (h *History) add(c Change) {
	if n := len(h.Newest); n > 0 && c.Generation <= h.Newest[n-1].Generation {
		return
	}
	h.Changes++
	h.Seconds += c.Seconds
	h.Newest = append(h.Newest[max(0, len(h.Newest)+1-mostChanges):], c)
}

// record adds the changes that this worker has seen to the history in the store, and renews its retention, once
// for each view. It is called when no view is to be decided, so that none waits for it. It does not try again:
// the next view brings what is missing. The swap keeps it from bringing back the history of a job whose last
// worker has left.
func (l *leader) record(ctx context.Context) {
	l.mu.Lock()
	view, changes := l.current, slices.Clone(l.changes)
	l.mu.Unlock()
	if view == nil || l.recorded == view.Generation {
		return
	}
	l.recorded = view.Generation
	old, err := l.store.Get(ctx, l.keys.history)
	if ignore(err, store.ErrNotFound) != nil {
		return
	}
	var h History
	if json.Unmarshal(old, &h) != nil || h.Run != view.Run {
		h = History{Run: view.Run}
	}
	for _, c := range changes {
		h.add(c)
	}
	_, _ = l.store.SwapFor(ctx, l.keys.history, old, encode(&h), retention)
}

// Changes yields the changes of a job from now on, once they are in its history, until ctx ends or the store
// fails.
func Changes(ctx context.Context, s *store.Store, job string) iter.Seq[Change] {
	k := keysOf(job)
	return func(yield func(Change) bool) {
		known := 0
		if t, err := ReadStatus(ctx, s, job); err == nil {
			known = t.History.Changes
		}
		for e, err := range s.Watch(ctx, k.history, 0) {
			if err != nil {
				return
			}
			var h History
			_ = json.Unmarshal(e.Value, &h) // there is none if it was deleted, and the next run begins with 0
			fresh := min(max(h.Changes-known, 0), len(h.Newest))
			known = h.Changes
			for _, c := range h.Newest[len(h.Newest)-fresh:] {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// Status is what the store has of a job.
type Status struct {
	Generation uint64 // of the newest view; 0 if there is none
	Workers    int    // of that view
	Gone       int    // of these, the ones that have left or failed: the view has ended if there are any
	Registered int    // workers of the job: those of the view, unless they are gone, and others
	Min        int    // workers that a view needs; 0 if none is registered
	History    History
}

// ReadStatus reads the status of a job from the store. It is for programs that show it.
func ReadStatus(ctx context.Context, s *store.Store, job string) (*Status, error) {
	k := keysOf(job)
	r, err := readRoster(ctx, s, &k)
	var raw []byte
	if err == nil {
		raw, err = s.Get(ctx, k.history)
	}
	if ignore(err, store.ErrNotFound) != nil {
		return nil, &Error{Op: "status", Job: job, Rank: -1, Err: err}
	}
	t := &Status{Registered: len(r.workers)}
	for _, g := range r.workers {
		t.Min = g.Min
	}
	if r.view == nil {
		return t, nil
	}
	t.Generation, t.Workers = r.view.Generation, len(r.view.Slots)
	for _, slot := range r.view.Slots {
		if r.workers[slot.Key] == nil {
			t.Gone++
		}
	}
	if json.Unmarshal(raw, &t.History) != nil || t.History.Run != r.view.Run { // of an earlier job, or of none
		t.History = History{}
	}
	return t, nil
}
