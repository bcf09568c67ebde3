package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var leaseChecks = []check{
	{"entries go when it is closed, and those who watch see them expire", leaseClosed, []Feature{Leases, Watch}},
	{"it ends when its time has passed, and not before", leasePasses, []Feature{Leases, Watch}},
	{"to keep it alive begins its time anew", leaseKept, []Feature{Leases, Watch}},
	{"it is kept alive until it is closed", leaseHeld, []Feature{Leases}},
	{"what has ended is ErrNotFound", leaseOver, []Feature{Leases}},
	{"its end is reported", leaseEndReported, []Feature{Leases}},
	{"it ends once", leaseOnce, []Feature{Leases}},
	{"a lease without a time is ErrInvalid", leaseInvalid, []Feature{Leases}},
	{"thousands of entries go together", leaseMany, []Feature{Leases, List}},
	{"set without it takes an entry out, with another moves it", leaseDetach, []Feature{Leases}},
	{"swap takes an entry out, add and append do not", leaseChanges, []Feature{Leases, Swap, Add, Append}},
	{"a deleted entry's lease does not end its successor", leaseDeleted, []Feature{Leases, Delete}},
	{"of a lease and a TTL the first that ends counts", leaseTTL, []Feature{Leases, TTL, Watch}},
	{"ids grow, and none comes twice", leaseGrows, []Feature{Leases}},
	{"another session's is ErrDenied", leaseDenied, []Feature{Leases, Sessions}},
	{"it ends with its session, at once", leaseSession, []Feature{Leases, Watch, Sessions}},
	{"it ends with its session, when that is lost", leaseLost, []Feature{Leases, Watch, Sessions, Loss}},
	{"a wait for what it holds is over before it ends, or is none", leaseWait, []Feature{Leases, Wait}},
}

// lease makes a lease that lives until the end of the check.
func (w *world) lease(s *store.Store) *store.Lease {
	w.t.Helper()
	l, err := s.Lease(w.ctx, limit)
	good(w.t, err)
	w.t.Cleanup(func() { // while the session is open: ends the lease's goroutine
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// grant makes a lease that no client keeps alive.
func (w *world) grant(s *store.Store, ttl time.Duration) uint64 {
	w.t.Helper()
	var rep wire.Reply
	good(w.t, s.Do(w.ctx, &wire.Request{Op: wire.OpGrant, TTL: ttl}, &rep))
	return uint64(rep.N)
}

// put sets key to its own name on a lease.
func (w *world) put(s *store.Store, lease uint64, key string) error {
	return s.Do(w.ctx, &wire.Request{Op: wire.OpSet, Key: key, Value: []byte(key), Lease: lease}, new(wire.Reply))
}

func (w *world) keep(s *store.Store, lease uint64) error {
	return s.Do(w.ctx, &wire.Request{Op: wire.OpKeepAlive, Lease: lease}, new(wire.Reply))
}

func (w *world) revoke(s *store.Store, lease uint64) error {
	return s.Do(w.ctx, &wire.Request{Op: wire.OpRevoke, Lease: lease}, new(wire.Reply))
}

// on sets each key to its own name on l.
func (w *world) on(s *store.Store, l *store.Lease, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		good(w.t, s.Set(w.ctx, k, []byte(k), &store.SetOptions{Lease: l}))
	}
}

// expires fails the test unless the next changes are the expiry of keys, in any order.
func expires(t *testing.T, pull func() (store.Event, error, bool), keys ...string) {
	t.Helper()
	var gone []string
	for range keys {
		e := next(t, pull)
		if !e.Expired || !e.Deleted || e.Value != nil {
			t.Fatalf("%q has not expired: %+v", e.Key, e)
		}
		gone = append(gone, e.Key)
	}
	slices.Sort(gone)
	same(t, "expired", gone, keys)
}

func leaseClosed(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	w.set(s, "stays")
	w.on(s, l, "a", "b")
	pull := w.watch(s, "", w.revision(s))
	holds(t, w, s, "a", "a")
	good(t, l.Close(w.ctx))
	lacksKey(t, w, s, "a")
	lacksKey(t, w, s, "b")
	expires(t, pull, "a", "b")
	holds(t, w, s, "stays", "stays")
}

func leasePasses(t *testing.T, w *world) {
	s := w.store()
	ttl := 2 * w.TTL
	rev := w.revision(s)
	var start time.Time
	var id uint64
	key := w.quickly(ttl, func(key string) {
		start = time.Now()
		id = w.grant(s, ttl)
		if err := w.put(s, id, key); time.Since(start) < ttl {
			good(t, err)
		}
	})
	pull := w.watch(s, key, rev)
	same(t, "set", next(t, pull).Deleted, false)
	for time.Since(start) < ttl/2 {
		if _, err := s.Get(w.ctx, key); err != nil && time.Since(start) < ttl {
			t.Fatalf("after %v of %v: %v", time.Since(start), ttl, err)
		}
	}
	expires(t, pull, key)
	if took := time.Since(start); took < ttl {
		t.Fatalf("it ended after %v, its time is %v", took, ttl)
	}
	lacksKey(t, w, s, "key")
	is(t, w.keep(s, id), store.ErrNotFound)
}

func leaseKept(t *testing.T, w *world) {
	s := w.store()
	ttl := 4 * w.TTL
	rev := w.revision(s)
	var start time.Time
	key := w.quickly(ttl, func(key string) {
		granted := time.Now()
		inTime := func(err error) { // otherwise the lease may have ended
			if time.Since(granted) < ttl {
				good(t, err)
			}
		}
		id := w.grant(s, ttl)
		inTime(w.put(s, id, key))
		<-time.After(ttl / 2)
		start = time.Now()
		inTime(w.keep(s, id))
	})
	pull := w.watch(s, key, rev)
	same(t, "set", next(t, pull).Deleted, false)
	expires(t, pull, key)
	if took := time.Since(start); took < ttl {
		t.Fatalf("it ended %v after it was kept alive, its time is %v", took, ttl)
	}
}

func leaseHeld(t *testing.T, w *world) {
	s := w.store()
	ttl := max(w.TTL, 3*time.Second) // long enough for the delays of a busy machine
	l, err := s.Lease(w.ctx, ttl)
	good(t, err)
	w.on(s, l, "key")
	<-time.After(2 * ttl)
	holds(t, w, s, "key", "key")
	good(t, l.Err())
	good(t, l.Close(w.ctx))
	is(t, l.Err(), store.ErrClosed)
	lacksKey(t, w, s, "key")
}

func leaseOver(t *testing.T, w *world) {
	s := w.store()
	id := w.grant(s, limit)
	good(t, w.revoke(s, id))
	for _, err := range []error{w.put(s, id, "key"), w.keep(s, id), w.revoke(s, id), w.keep(s, id+1000)} {
		is(t, err, store.ErrNotFound)
	}
	lacksKey(t, w, s, "key")
}

func leaseEndReported(t *testing.T, w *world) {
	s := w.store()
	l, err := s.Lease(w.ctx, 20*w.TTL)
	good(t, err)
	good(t, w.revoke(s, l.ID()))
	select {
	case <-l.Done():
	case <-w.ctx.Done():
		t.Fatal("no watcher got the end of the lease")
	}
	is(t, l.Err(), store.ErrNotFound)
	good(t, l.Close(w.ctx))
}

func leaseOnce(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	w.on(s, l, "key")
	allGood(t, together(4, func(int) ([][]byte, error) { return nil, l.Close(w.ctx) }))
	w.set(s, "key")
	good(t, l.Close(w.ctx))
	holds(t, w, s, "key", "key")
}

func leaseInvalid(t *testing.T, w *world) {
	s := w.store()
	for _, ttl := range []time.Duration{0, -time.Second} {
		_, err := s.Lease(w.ctx, ttl)
		is(t, err, store.ErrInvalid)
	}
}

func leaseMany(t *testing.T, w *world) {
	const n = 3000
	s := w.store()
	id := w.grant(s, limit)
	allGood(t, together(8, func(k int) ([][]byte, error) {
		for i := k; i < n; i += 8 {
			if err := w.put(s, id, fmt.Sprintf("many/%d", i)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}))
	w.set(s, "one")
	same(t, "entries", len(w.list(s, "")), n+1)
	good(t, w.revoke(s, id))
	same(t, "left", keysOf(w.list(s, "")), []string{"one"})
	w.set(s, "many/0")
	holds(t, w, s, "many/0", "many/0")
}

func leaseDetach(t *testing.T, w *world) {
	s := w.store()
	one, two := w.lease(s), w.lease(s)
	w.on(s, one, "free", "moved", "held")
	w.set(s, "free")
	w.on(s, two, "moved")
	good(t, one.Close(w.ctx))
	lacksKey(t, w, s, "held")
	holds(t, w, s, "free", "free")
	holds(t, w, s, "moved", "moved")
	good(t, two.Close(w.ctx))
	lacksKey(t, w, s, "moved")
	holds(t, w, s, "free", "free")
}

func leaseChanges(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	w.on(s, l, "swapped", "appended")
	good(t, s.Set(w.ctx, "added", []byte("1"), &store.SetOptions{Lease: l}))
	_, err := s.Swap(w.ctx, "swapped", []byte("swapped"), []byte("new"))
	good(t, err)
	_, err = s.Append(w.ctx, "appended", []byte("more"))
	good(t, err)
	_, err = s.Add(w.ctx, "added", 1)
	good(t, err)
	good(t, l.Close(w.ctx))
	holds(t, w, s, "swapped", "new")
	lacksKey(t, w, s, "appended")
	lacksKey(t, w, s, "added")
}

func leaseDeleted(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	w.on(s, l, "key")
	_, err := s.Delete(w.ctx, "key")
	good(t, err)
	w.set(s, "key")
	good(t, l.Close(w.ctx))
	holds(t, w, s, "key", "key")
}

func leaseTTL(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	pull := w.watchSet(s)
	good(t, s.Set(w.ctx, "short", nil, &store.SetOptions{Lease: l, TTL: w.TTL}))
	good(t, s.Set(w.ctx, "long", nil, &store.SetOptions{Lease: l, TTL: limit}))
	var gone []string
	for len(gone) < 2 {
		e := next(t, pull)
		if !e.Deleted {
			continue
		}
		same(t, "expired", e.Expired, true)
		if gone = append(gone, e.Key); len(gone) == 1 {
			good(t, l.Close(w.ctx))
		}
	}
	same(t, "gone", gone, []string{"short", "long"})
}

func leaseGrows(t *testing.T, w *world) {
	last := uint64(0)
	for range 5 {
		s := w.store()
		for range 3 {
			id := w.grant(s, limit)
			if id <= last {
				t.Fatalf("lease %d after %d", id, last)
			}
			last = id
			good(t, w.revoke(s, id))
		}
	}
}

func leaseDenied(t *testing.T, w *world) {
	a, b := w.store(), w.store()
	id := w.grant(a, limit)
	good(t, w.put(a, id, "key"))
	for _, err := range []error{w.put(b, id, "key"), w.keep(b, id), w.revoke(b, id)} {
		is(t, err, store.ErrDenied)
	}
	holds(t, w, b, "key", "key")
	good(t, w.keep(a, id))
}

func leaseSession(t *testing.T, w *world) {
	s, other := w.store(), w.store()
	id := w.grant(s, limit)
	pull := w.watch(other, "", max(w.revision(other), 1))
	good(t, w.put(s, id, "a"))
	good(t, w.put(s, id, "b"))
	same(t, "set", []string{next(t, pull).Key, next(t, pull).Key}, []string{"a", "b"})
	good(t, s.Close())
	lacksKey(t, w, other, "a")
	lacksKey(t, w, other, "b")
	expires(t, pull, "a", "b")
	is(t, w.keep(other, id), store.ErrNotFound)
}

func leaseLost(t *testing.T, w *world) {
	e, other := w.engine(), w.store()
	s := store.New(e)
	id := w.grant(s, limit)
	good(t, w.put(s, id, "key"))
	pull := w.watch(other, "", w.revision(other))
	w.Cut(e)
	expires(t, pull, "key")
	is(t, w.keep(other, id), store.ErrNotFound)
}

func leaseWait(t *testing.T, w *world) {
	a := w.store()
	id := w.grant(a, limit)
	good(t, w.put(a, id, "gone"))
	good(t, w.revoke(a, id))
	waiting := later(t, func() ([][]byte, error) { return a.Wait(w.ctx, "gone", "key") })
	id = w.grant(a, limit)
	good(t, w.put(a, id, "key"))
	holdsNothing(t, w, a, "gone", waiting)
	w.set(a, "gone")
	o := <-waiting
	good(t, o.err)
	same(t, "values", texts(o.values), []string{"gone", "key"})
}
