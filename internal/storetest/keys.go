package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var keyChecks = []check{
	{"what was passed in may be changed afterwards", callerKeepsInput, nil},
	{"what was returned may be changed", callerOwnsOutput, nil},
	{"revision grows with every change, and with no read", revisionGrows, []Feature{Watch}},
}

func callerKeepsInput(t *testing.T, w *world) {
	s := w.store()
	v := []byte("value")
	good(t, s.Set(w.ctx, "key", v, nil))
	copy(v, "XXXXX")
	holds(t, w, s, "key", "value")
}

func callerOwnsOutput(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	v, err := s.Get(w.ctx, "key")
	good(t, err)
	copy(v, "own")
	_ = append(v, "more"...)
	holds(t, w, s, "key", "key")
}

func revisionGrows(t *testing.T, w *world) {
	s := w.store()
	before := w.revision(s)
	for range 3 {
		w.set(s, "key")
		now := w.revision(s)
		if now <= before {
			t.Fatalf("revision %d after %d", now, before)
		}
		holds(t, w, s, "key", "key")
		same(t, "revision after a read", w.revision(s), now)
		before = now
	}
}

var swapChecks = []check{
	{"of eight at once one wins", swapRace, []Feature{Swap}},
}

func swapRace(t *testing.T, w *world) {
	s := w.store()
	out := together(8, func(i int) ([][]byte, error) {
		now, err := s.Swap(w.ctx, "lock", nil, []byte{byte('0' + i)})
		return [][]byte{now}, err
	})
	winner := slices.IndexFunc(out, func(o outcome) bool { return o.err == nil })
	for i, o := range out {
		same(t, "what is there", texts(o.values), []string{fmt.Sprint(winner)})
		if i != winner {
			is(t, o.err, store.ErrConflict)
		}
	}
}

var listChecks = []check{
	{"more than a page", listPages, []Feature{List}},
	{"large values", listLarge, []Feature{List}},
	{"returns the revision of the last change", listRevision, []Feature{List, Watch}},
	{"of keys alone has all of them", keysAlone, []Feature{List}},
}

func (w *world) list(s *store.Store, prefix string) (entries []store.Entry) {
	w.t.Helper()
	for e, err := range s.List(w.ctx, prefix) {
		good(w.t, err)
		entries = append(entries, e)
	}
	return entries
}

func keysOf(entries []store.Entry) (keys []string) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

func listPages(t *testing.T, w *world) {
	s := w.store()
	const n = 2500
	want := make([]string, n)
	for i := range want {
		want[i] = fmt.Sprintf("many/%04d", i)
	}
	allGood(t, together(10, func(k int) ([][]byte, error) {
		for i := k; i < n; i += 10 {
			if err := s.Set(w.ctx, want[i], []byte(want[i]), nil); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	w.set(s, "many", "many0", "more")
	same(t, "keys", keysOf(w.list(s, "many/")), want)
}

func listLarge(t *testing.T, w *world) {
	s := w.store()
	for i := range 5 {
		good(t, s.Set(w.ctx, fmt.Sprint(i), big(600<<10+i), nil))
	}
	entries := w.list(s, "")
	same(t, "keys", keysOf(entries), []string{"0", "1", "2", "3", "4"})
	for i, e := range entries {
		same(t, "length", len(e.Value), 600<<10+i)
	}
}

func keysAlone(t *testing.T, w *world) {
	s := w.store()
	var want []string
	for i := range 1500 {
		want = append(want, fmt.Sprintf("many/%04d", i))
	}
	w.set(s, want...)
	w.set(s, "other")
	var got []string
	for k, err := range s.Keys(w.ctx, "many/") {
		good(t, err)
		got = append(got, k)
	}
	same(t, "keys", got, want)
	var rep wire.Reply
	good(t, s.Do(w.ctx, &wire.Request{Op: wire.OpList, Key: "many/", Delta: -3}, &rep))
	same(t, "keys", rep.Keys, want[:3])
	same(t, "values", len(rep.Values), 0)
	same(t, "more", rep.N, 1)
}

func listRevision(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "old", "new", "old")
	now := w.revision(s)
	entries := w.list(s, "")
	same(t, "keys", keysOf(entries), []string{"new", "old"})
	same(t, "revision of the last change", entries[1].Rev, now)
	if entries[0].Rev >= now || entries[0].Rev == 0 {
		t.Fatalf("revision of the change before it is %d, the last is %d", entries[0].Rev, now)
	}
}
