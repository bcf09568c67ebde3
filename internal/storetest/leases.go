package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var leaseChecks = []check{
	{"it ends once", leaseOnce, []Feature{Leases}},
	{"thousands of entries go together", leaseMany, []Feature{Leases, List}},
	{"ids grow, and none comes twice", leaseGrows, []Feature{Leases}},
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

func leaseOnce(t *testing.T, w *world) {
	s := w.store()
	l := w.lease(s)
	w.on(s, l, "key")
	allGood(t, together(4, func(int) ([][]byte, error) { return nil, l.Close(w.ctx) }))
	w.set(s, "key")
	good(t, l.Close(w.ctx))
	holds(t, w, s, "key", "key")
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
