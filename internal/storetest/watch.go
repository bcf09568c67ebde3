package storetest

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
)

var watchChecks = []check{
	{"each change once, in order", watchOrder, []Feature{Watch}},
	{"the history of a store that was empty", watchEmpty, []Feature{Watch}},
	{"changes that come later", watchLater, []Feature{Watch}},
	{"from now on", watchNow, []Feature{Watch}},
	{"deletes are reported as deletes", watchDelete, []Feature{Watch, Delete, Swap}},
	{"the last read is reported as an end", watchReads, []Feature{Watch, Reads}},
	{"adds, appends and swaps are reported with their values", watchValues, []Feature{Watch, Add, Append, Swap}},
	{"other prefixes are not reported", watchPrefix, []Feature{Watch}},
	{"a list and a watch from its revision miss nothing", watchAfterList, []Feature{Watch, List}},
	{"two who watch see the same", watchTwo, []Feature{Watch}},
	{"ends with its context", watchEnds, []Feature{Watch}},
	{"what is forgotten is ErrCompacted", watchCompacted, []Feature{Watch, Compaction}},
	{"what is not yet is ErrCompacted", watchFuture, []Feature{Watch, Compaction}},
}

func watchOrder(t *testing.T, w *world) {
	s := w.store()
	const n = 2500
	rev := w.revision(s)
	for i := range n {
		good(t, s.Set(w.ctx, fmt.Sprint(i%7), fmt.Append(nil, i), nil))
	}
	events := w.watch(s, "", rev)
	for i := range n {
		e := next(t, events)
		same(t, "change", []string{e.Key, string(e.Value)}, []string{fmt.Sprint(i % 7), fmt.Sprint(i)})
		if e.Rev <= rev {
			t.Fatalf("revision %d after %d", e.Rev, rev)
		}
		rev = e.Rev
	}
	same(t, "last revision", rev, w.revision(s))
}

func watchEmpty(t *testing.T, w *world) {
	s := w.store()
	rev := w.revision(s)
	w.set(s, "first")
	same(t, "change", next(t, w.watch(s, "", rev)).Key, "first")
}

func watchLater(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	events := w.watch(a, "", w.revision(a))
	for i := range 10 {
		k := fmt.Sprint(i)
		setting := laterErr(t, func() error { return b.Set(w.ctx, k, nil, nil) })
		same(t, "change", next(t, events).Key, k)
		good(t, (<-setting).err)
	}
}

// watchNow sets the key until the watch has seen a change, since it cannot know when the watch
// begins. From there on the watch must see all changes.
func watchNow(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	w.set(b, "before")
	seen := later(t, func() (keys [][]byte, err error) {
		for e, err := range a.Watch(w.ctx, "", 0) {
			if err != nil || len(keys) == 5 {
				return keys, err
			}
			keys = append(keys, []byte(e.Key))
		}
		return keys, nil
	})
	for i := 0; len(seen) == 0; i++ {
		if err := b.Set(w.ctx, fmt.Sprintf("%06d", i), nil, nil); err != nil {
			break
		}
		<-time.After(time.Millisecond) // no faster than the watch can follow
	}
	o := <-seen
	good(t, o.err)
	first, err := strconv.Atoi(string(o.values[0]))
	good(t, err)
	for i, k := range texts(o.values) {
		same(t, "change", k, fmt.Sprintf("%06d", first+i))
	}
}

func watchDelete(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "a", "b")
	events := w.watch(s, "", w.revision(s))
	_, err := s.Delete(w.ctx, "a", "missing")
	good(t, err)
	_, err = s.Swap(w.ctx, "b", []byte("b"), nil)
	good(t, err)
	for _, k := range []string{"a", "b"} {
		e := next(t, events)
		same(t, "key", e.Key, k)
		same(t, "deleted, expired, no value", []bool{e.Deleted, e.Expired, e.Value == nil}, []bool{true, false, true})
	}
}

func watchReads(t *testing.T, w *world) {
	s := w.store()
	events := w.watch(s, "", w.revision(s))
	good(t, s.Set(w.ctx, "key", []byte("value"), &store.SetOptions{Reads: 1}))
	holds(t, w, s, "key", "value")
	same(t, "set", next(t, events).Deleted, false)
	e := next(t, events)
	same(t, "deleted, expired", []bool{e.Deleted, e.Expired}, []bool{true, true})
}

func watchValues(t *testing.T, w *world) {
	s := w.store()
	events := w.watch(s, "", w.revision(s))
	_, err := s.Add(w.ctx, "n", 5)
	good(t, err)
	_, err = s.Add(w.ctx, "n", 5)
	good(t, err)
	_, err = s.Append(w.ctx, "n", []byte("0"))
	good(t, err)
	_, err = s.Swap(w.ctx, "n", []byte("100"), []byte{})
	good(t, err)
	for _, v := range []string{"5", "10", "100", ""} {
		e := next(t, events)
		same(t, "value", string(e.Value), v)
		same(t, "deleted", e.Deleted, false)
	}
}

func watchPrefix(t *testing.T, w *world) {
	s := w.store()
	events := w.watch(s, "a/", w.revision(s))
	w.set(s, "a", "b", "a/1", "a0", "A/1", "a/2", "a/")
	for _, k := range []string{"a/1", "a/2", "a/"} {
		same(t, "change", next(t, events).Key, k)
	}
}

func watchAfterList(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	const n = 300
	setting := laterErr(t, func() error {
		for i := range n {
			if err := b.Set(w.ctx, fmt.Sprint(i), nil, nil); err != nil {
				return err
			}
		}
		return nil
	})
	rev := w.revision(a)
	have := map[string]bool{}
	for _, k := range keysOf(w.list(a, "")) {
		have[k] = true
	}
	events := w.watch(a, "", rev)
	for len(have) < n {
		have[next(t, events).Key] = true
	}
	good(t, (<-setting).err)
}

func watchTwo(t *testing.T, w *world) {
	a, b, c := w.store(), w.store(), w.store()
	rev := w.revision(c)
	one, two := w.watch(a, "k", rev), w.watch(b, "k", rev)
	for i := range 20 {
		good(t, c.Set(w.ctx, "k", []byte{byte(i)}, nil))
		x, y := next(t, one), next(t, two)
		same(t, "change", x, y)
		same(t, "value", x.Value, []byte{byte(i)})
	}
}

func watchEnds(t *testing.T, w *world) {
	s := w.store()
	ctx, cancel := context.WithCancel(w.ctx)
	watching := laterErr(t, func() error {
		for _, err := range s.Watch(ctx, "", 0) {
			if err != nil {
				return err
			}
		}
		return nil
	})
	w.set(s, "key")
	cancel()
	is(t, (<-watching).err, context.Canceled)
	for _, err := range s.Watch(w.within(soon), "never", 0) {
		is(t, err, context.DeadlineExceeded)
	}
	holds(t, w, s, "key", "key")
}

// watchCompacted makes changes until the first one is dropped: the engine chooses how many it
// keeps, but the number must be bounded.
func watchCompacted(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	first := w.revision(s)
	const most, step = 200_000, 4000
	for range most / step {
		allGood(t, together(8, func(i int) ([][]byte, error) {
			for range step / 8 {
				if err := s.Set(w.ctx, fmt.Sprint(i), nil, nil); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}))
		if compacted(t, w, s, first) {
			return
		}
	}
	t.Fatalf("%d changes are kept", most)
}

func compacted(t *testing.T, w *world, s *store.Store, after store.Revision) bool {
	for _, err := range s.Watch(w.ctx, "", after) {
		if err != nil {
			is(t, err, store.ErrCompacted)
			same(t, "change after the newest", next(t, w.watchSet(s)).Key, "newest")
			return true
		}
		return false
	}
	return false
}

// watchSet watches from the current revision, and makes one change.
func (w *world) watchSet(s *store.Store) func() (store.Event, error, bool) {
	events := w.watch(s, "", w.revision(s))
	w.set(s, "newest")
	return events
}

func watchFuture(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	for _, err := range s.Watch(w.ctx, "", w.revision(s)+1000) {
		is(t, err, store.ErrCompacted)
	}
}
