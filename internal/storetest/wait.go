package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var waitChecks = []check{
	{"for what is there returns at once", waitThere, []Feature{Wait}},
	{"for what another session sets later", waitLater, []Feature{Wait}},
	{"for several keys, one of them missing", waitSeveral, []Feature{Wait}},
	{"for a counter, an append and a swap", waitOthers, []Feature{Wait, Add, Append, Swap}},
	{"for the same key twice", waitTwice, []Feature{Wait}},
	{"for no key returns at once", waitNothing, []Feature{Wait}},
	{"that times out names the missing keys", waitTimeout, []Feature{Wait}},
	{"is not over while a key comes and goes", waitAllAtOnce, []Feature{Wait, Delete}},
	{"that is cancelled returns at once, and affects no other call", waitCancelled, []Feature{Wait}},
	{"whose context is over does not begin", waitOver, []Feature{Wait}},
	{"delays no other call", waitDelaysNoCall, []Feature{Wait}},
	{"gives values that are the caller's", waitOwnsOutput, []Feature{Wait}},
}

func waitThere(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "a", "b")
	v, err := s.Wait(w.ctx, "b", "a")
	good(t, err)
	same(t, "values, in the order of the keys", texts(v), []string{"b", "a"})
}

func waitLater(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "key") })
	holdsNothing(t, w, b, "key", waiting)
	w.set(b, "key")
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"key"})
}

// holdsNothing makes some calls while key is missing, to check that waiting, which waits for it,
// blocks no other call.
func holdsNothing(t *testing.T, w *world, s *store.Store, key string, waiting <-chan outcome) {
	t.Helper()
	for range 10 {
		lacksKey(t, w, s, key)
		stillWaits(t, "wait", waiting)
	}
}

func waitSeveral(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	w.set(b, "1", "3")
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "1", "2", "3") })
	holdsNothing(t, w, b, "2", waiting)
	w.set(b, "2")
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"1", "2", "3"})
}

func waitOthers(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "added", "appended", "swapped") })
	_, err := b.Add(w.ctx, "added", 7)
	good(t, err)
	_, err = b.Swap(w.ctx, "swapped", nil, []byte("s"))
	good(t, err)
	_, err = b.Append(w.ctx, "appended", []byte("a"))
	good(t, err)
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"7", "a", "s"})
}

func waitTwice(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "k", "k") })
	holdsNothing(t, w, b, "k", waiting)
	w.set(b, "k")
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"k", "k"})
}

func waitNothing(t *testing.T, w *world) {
	v, err := w.store().Wait(w.ctx)
	good(t, err)
	same(t, "values", len(v), 0)
}

func waitTimeout(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "present")
	start := time.Now()
	_, err := s.Wait(w.within(soon), "absent-1", "present", "absent-2", "absent-1")
	is(t, err, store.ErrTimeout)
	is(t, err, context.DeadlineExceeded)
	names(t, err, "wait", "absent-1", "absent-2")
	if e := err.Error(); strings.Contains(e, "present") {
		t.Fatalf("error %q names a key that is there", e)
	}
	inTime(t, "wait", start, soon)
	holds(t, w, s, "present", "present")
}

// inTime fails the test unless what took at least d, and not much longer.
func inTime(t *testing.T, what string, start time.Time, d time.Duration) {
	t.Helper()
	if took := time.Since(start); took < d || took > d+limit/2 {
		t.Fatalf("%s took %v, want %v", what, took, d)
	}
}

func waitAllAtOnce(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "x", "y") })
	for range 20 {
		w.set(b, "x")
		_, err := b.Delete(w.ctx, "x")
		good(t, err)
		w.set(b, "y")
		_, err = b.Delete(w.ctx, "y")
		good(t, err)
	}
	stillWaits(t, "wait", waiting)
	w.set(b, "x", "y")
	good(t, (<-waiting).err)
}

func waitCancelled(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	ctx, cancel := context.WithCancel(w.ctx)
	waiting := later(t, func() ([][]byte, error) { return a.Wait(ctx, "key") })
	beside := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "key") })
	holdsNothing(t, w, b, "key", waiting)
	cancel()
	o := <-waiting
	is(t, o.err, context.Canceled)
	w.set(a, "key")
	good(t, (<-beside).err)
}

func waitOver(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "key")
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := s.Wait(ctx, "key")
	is(t, err, context.Canceled)
	is(t, err, store.ErrCancelled)
	ctx, cancel = context.WithDeadline(w.ctx, time.Now().Add(-time.Second))
	defer cancel()
	_, err = s.Wait(ctx, "key")
	is(t, err, context.DeadlineExceeded)
	is(t, err, store.ErrTimeout)
}

func waitDelaysNoCall(t *testing.T, w *world) {
	s := w.store()
	var waiting []<-chan outcome
	for i := range 100 {
		waiting = append(waiting, later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "go", fmt.Sprint(i%10)) }))
	}
	for i := range 200 {
		k := fmt.Sprint(i % 10)
		w.set(s, k)
		holds(t, w, s, k, k)
	}
	w.set(s, "go")
	for _, ch := range waiting {
		good(t, (<-ch).err)
	}
}

func waitOwnsOutput(t *testing.T, w *world) {
	s := w.store()
	a := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "key", "key") })
	b := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "key") })
	w.set(s, "key")
	o := <-a
	good(t, o.err)
	copy(o.values[0], "own")
	same(t, "the other value", texts(o.values), []string{"own", "key"})
	same(t, "the other caller's value", texts((<-b).values), []string{"key"})
	holds(t, w, s, "key", "key")
}

var lifetimeChecks = []check{
	{"an entry is there for its TTL, and then gone", ttlPasses, []Feature{TTL, Watch}},
	{"set forgets an old TTL", ttlForgotten, []Feature{TTL, Watch}},
	{"set begins a new TTL", ttlAnew, []Feature{TTL, Watch}},
	{"entries go in the order of their ends", ttlOrder, []Feature{TTL, Watch}},
	{"a deleted entry's TTL does not end its successor", ttlDeleted, []Feature{TTL, Watch, Delete}},
	{"a wait ends neither early nor late for what has a TTL", ttlWait, []Feature{TTL, Wait, Watch}},
	{"a negative TTL is ErrInvalid", ttlNegative, []Feature{TTL}},
	{"add, append and swap may give one to what they make", ttlMade, []Feature{TTL, List, Add, Append, Swap}},
	{"reads by get", readsByGet, []Feature{Reads}},
	{"reads by wait", readsByWait, []Feature{Reads, Wait}},
	{"of two who wait for one read, one gets it", readsOnce, []Feature{Reads, Wait}},
	{"a wait that is not over has read nothing", readsNotYet, []Feature{Reads, Wait}},
	{"set forgets the reads that were left", readsForgotten, []Feature{Reads}},
	{"a list is no read", readsList, []Feature{Reads, List}},
	{"a negative number of reads is ErrInvalid", readsNegative, []Feature{Reads}},
}

func ttlPasses(t *testing.T, w *world) {
	s := w.store()
	events := w.watch(s, "key", w.revision(s))
	start := time.Now()
	good(t, s.Set(w.ctx, "key", []byte("value"), &store.SetOptions{TTL: w.TTL}))
	same(t, "set", string(next(t, events).Value), "value")
	e := next(t, events)
	inTime(t, "the entry's life", start, w.TTL)
	same(t, "the end is reported as one of time", []bool{e.Deleted, e.Expired, e.Value == nil}, []bool{true, true, true})
	lacksKey(t, w, s, "key")
}

func ttlForgotten(t *testing.T, w *world) {
	s := w.store()
	rev := w.revision(s)
	p := w.quickly(w.TTL, func(p string) {
		good(t, s.Set(w.ctx, p+"stays", nil, &store.SetOptions{TTL: w.TTL}))
		w.set(s, p+"stays")
	})
	events := w.watch(s, p, rev)
	good(t, s.Set(w.ctx, p+"goes", nil, &store.SetOptions{TTL: w.TTL}))
	for range 3 {
		same(t, "goes early", next(t, events).Deleted, false)
	}
	same(t, "goes", next(t, events).Key, p+"goes")
	holds(t, w, s, p+"stays", p+"stays")
}

func ttlAnew(t *testing.T, w *world) {
	s := w.store()
	rev := w.revision(s)
	var start time.Time
	p := w.quickly(w.TTL, func(p string) {
		good(t, s.Set(w.ctx, p+"key", nil, &store.SetOptions{TTL: w.TTL}))
		start = time.Now()
		good(t, s.Set(w.ctx, p+"key", nil, &store.SetOptions{TTL: 3 * w.TTL}))
	})
	events := w.watch(s, p, rev)
	for range 2 {
		same(t, "goes early", next(t, events).Deleted, false)
	}
	same(t, "goes", next(t, events).Expired, true)
	inTime(t, "the second life", start, 3*w.TTL)
}

func ttlOrder(t *testing.T, w *world) {
	s := w.store()
	rev := w.revision(s)
	p := w.quickly(w.TTL, func(p string) { // their expiry times are this far apart
		for i, k := range []string{"3", "1", "2"} {
			good(t, s.Set(w.ctx, p+k, nil, &store.SetOptions{TTL: time.Duration([]int{3, 1, 2}[i]) * w.TTL}))
		}
	})
	events := w.watch(s, p, rev)
	for range 3 {
		same(t, "set", next(t, events).Deleted, false)
	}
	for _, k := range []string{"1", "2", "3"} {
		e := next(t, events)
		same(t, "goes", e.Key, p+k)
		same(t, "expired", e.Expired, true)
	}
}

func ttlDeleted(t *testing.T, w *world) {
	s := w.store()
	var n int
	key := w.quickly(w.TTL, func(p string) {
		good(t, s.Set(w.ctx, p, nil, &store.SetOptions{TTL: w.TTL}))
		var err error
		n, err = s.Delete(w.ctx, p)
		good(t, err)
	})
	same(t, "deleted", n, 1)
	w.set(s, key)
	rev := w.revision(s)
	good(t, s.Set(w.ctx, "witness", nil, &store.SetOptions{TTL: w.TTL}))
	events := w.watch(s, "", rev)
	same(t, "set", next(t, events).Key, "witness")
	same(t, "goes", next(t, events).Key, "witness")
	holds(t, w, s, key, key)
}

func ttlWait(t *testing.T, w *world) {
	s := w.store()
	waiting := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "passing", "lasting") })
	events := w.watch(s, "passing", w.revision(s))
	good(t, s.Set(w.ctx, "passing", []byte("1"), &store.SetOptions{TTL: w.TTL}))
	next(t, events)
	same(t, "expired", next(t, events).Expired, true)
	w.set(s, "lasting")
	lacksKey(t, w, s, "passing")
	stillWaits(t, "wait", waiting)
	good(t, s.Set(w.ctx, "passing", []byte("2"), nil))
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"2", "lasting"})
}

// ttlMade checks that an entry's TTL, or its absence, does not change, except that Swap sets it
// anew.
func ttlMade(t *testing.T, w *world) {
	s := w.store()
	w.set(s, "stays")
	do := func(req wire.Request) { good(t, s.Do(w.ctx, &req, new(wire.Reply))) }
	do(wire.Request{Op: wire.OpAdd, Key: "added", Delta: 1, TTL: time.Hour})
	do(wire.Request{Op: wire.OpAdd, Key: "added", Delta: 1})
	do(wire.Request{Op: wire.OpAppend, Key: "appended", Value: []byte("v"), TTL: time.Hour})
	do(wire.Request{Op: wire.OpAppend, Key: "appended", Value: []byte("v"), TTL: time.Minute})
	do(wire.Request{Op: wire.OpAppend, Key: "stays", Value: []byte("v"), TTL: time.Hour})
	do(wire.Request{Op: wire.OpSwap, Key: "swapped", Value: []byte("v"), TTL: time.Minute})
	do(wire.Request{Op: wire.OpSwap, Key: "swapped", Old: []byte("v"), Value: []byte("w"), TTL: time.Hour})
	for _, e := range w.list(s, "") {
		if long := e.TTL > time.Minute && e.TTL <= time.Hour; long == (e.Key == "stays") {
			t.Fatalf("TTL of %s: %v", e.Key, e.TTL)
		}
	}
	for _, op := range []wire.Op{wire.OpAdd, wire.OpAppend, wire.OpSwap} {
		is(t, s.Do(w.ctx, &wire.Request{Op: op, Key: "new", Value: []byte("v"), TTL: -1}, new(wire.Reply)), store.ErrInvalid)
	}
	lacksKey(t, w, s, "new")
}

func ttlNegative(t *testing.T, w *world) {
	s := w.store()
	is(t, s.Set(w.ctx, "key", nil, &store.SetOptions{TTL: -1}), store.ErrInvalid)
	lacksKey(t, w, s, "key")
	is(t, s.Do(w.ctx, &wire.Request{Op: wire.OpSet, Key: "key", Value: []byte{}, TTL: -1}, new(wire.Reply)), store.ErrInvalid)
	lacksKey(t, w, s, "key")
}

func readsByGet(t *testing.T, w *world) {
	s := w.store()
	for reads := range 3 {
		good(t, s.Set(w.ctx, "key", []byte("value"), &store.SetOptions{Reads: reads + 1}))
		for range reads + 1 {
			holds(t, w, s, "key", "value")
		}
		lacksKey(t, w, s, "key")
	}
}

func readsByWait(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "key", []byte("value"), &store.SetOptions{Reads: 2}))
	for range 2 {
		v, err := s.Wait(w.ctx, "key")
		good(t, err)
		same(t, "values", texts(v), []string{"value"})
	}
	lacksKey(t, w, s, "key")
}

func readsOnce(t *testing.T, w *world) {
	a, b, c := w.store(), w.store(), w.store()
	got := make(chan outcome, 2)
	for _, s := range []*store.Store{a, b} {
		waiting := later(t, func() ([][]byte, error) { return s.Wait(w.ctx, "key") })
		later(t, func() ([][]byte, error) { got <- <-waiting; return nil, nil })
	}
	for _, v := range []string{"first", "second"} {
		good(t, c.Set(w.ctx, "key", []byte(v), &store.SetOptions{Reads: 1}))
		o := <-got
		good(t, o.err)
		same(t, "values", texts(o.values), []string{v})
		lacksKey(t, w, c, "key")
	}
}

func readsNotYet(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "once", []byte("value"), &store.SetOptions{Reads: 1}))
	_, err := s.Wait(w.within(soon), "once", "missing")
	is(t, err, store.ErrTimeout)
	holds(t, w, s, "once", "value")
	lacksKey(t, w, s, "once")
}

func readsForgotten(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "key", nil, &store.SetOptions{Reads: 1}))
	w.set(s, "key")
	for range 3 {
		holds(t, w, s, "key", "key")
	}
}

func readsList(t *testing.T, w *world) {
	s := w.store()
	good(t, s.Set(w.ctx, "key", []byte("value"), &store.SetOptions{Reads: 1}))
	same(t, "keys", keysOf(w.list(s, "")), []string{"key"})
	holds(t, w, s, "key", "value")
	same(t, "keys", len(w.list(s, "")), 0)
}

func readsNegative(t *testing.T, w *world) {
	is(t, w.store().Set(w.ctx, "key", nil, &store.SetOptions{Reads: -1}), store.ErrInvalid)
}
