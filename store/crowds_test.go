package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestCrowds checks what many callers do at the same time, at a durable store, whose replies wait for its
// log, and through a relay.
func TestCrowds(t *testing.T) {
	for way, open := range map[string]sessions{"durable": durably, "relay": throughARelay} {
		for name, check := range map[string]func(t *testing.T, open func() *store.Store){
			"callers": crowdOfCallers, "waiters": crowdOfWaiters, "queue": crowdAtAQueue, "watch": crowdOfChanges,
			"ranks": crowdOfRanks, "root": rootAndReader, "messages": manyMessages, "cancelled recvs": cancelledRecvs,
		} {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				check(t, open(t))
			})
		}
	}
}

// setAndGet sets key, and returns an error unless it then has this value.
func setAndGet(ctx context.Context, s *store.Store, key, value string) error {
	if err := s.Set(ctx, key, []byte(value), nil); err != nil {
		return err
	}
	v, err := s.Get(ctx, key)
	if err == nil && string(v) != value {
		err = fmt.Errorf("%s is %q, want %q", key, v, value)
	}
	return err
}

func crowdOfCallers(t *testing.T, open func() *store.Store) {
	const callers = 16
	s, ctx, rounds := open(), bounded(t), testcluster.Form(100, 1000)
	var next atomic.Int64
	together(t, callers, func() error {
		key := fmt.Sprint("own ", next.Add(1))
		for n := range rounds {
			if _, err := s.Add(ctx, "shared", 1); err != nil {
				return err
			}
			if err := setAndGet(ctx, s, key, fmt.Sprint(n)); err != nil {
				return err
			}
		}
		return nil
	})
	n, err := s.Add(ctx, "shared", 0)
	require.NoError(t, err)
	require.EqualValues(t, callers*rounds, n)
}

// crowdOfWaiters has sessions that each set one key, and wait for the keys of all.
func crowdOfWaiters(t *testing.T, open func() *store.Store) {
	const n = 64
	ctx := bounded(t)
	keys, stores := make([]string, n), make([]*store.Store, n)
	for i := range n {
		keys[i], stores[i] = fmt.Sprint("key ", i), open()
	}
	(&team{t: t, stores: stores}).all(func(i int, s *store.Store) error {
		if err := s.Set(ctx, keys[i], []byte(keys[i]), nil); err != nil {
			return err
		}
		values, err := s.Wait(ctx, keys...)
		for k, v := range values {
			if string(v) != keys[k] {
				return fmt.Errorf("%s is %q", keys[k], v)
			}
		}
		return err
	})
}

// crowdAtAQueue checks that each value is given to one of those who pop, and that each of them is
// given the values of one push after the other in their order.
func crowdAtAQueue(t *testing.T, open func() *store.Store) {
	const pushers, poppers, each = 3, 2, 20
	ctx := bounded(t)
	var stores []*store.Store
	for range pushers + poppers {
		stores = append(stores, open())
	}
	var popped [poppers][]string
	(&team{t: t, stores: stores}).all(func(i int, s *store.Store) error {
		if i < pushers {
			for k := range each {
				if err := s.Push(ctx, "q", fmt.Appendf(nil, "%d %d", i, k)); err != nil {
					return err
				}
			}
			return nil
		}
		for range pushers * each / poppers {
			v, err := s.Pop(ctx, "q")
			if err != nil {
				return err
			}
			popped[i-pushers] = append(popped[i-pushers], string(v))
		}
		return nil
	})
	seen := map[string]bool{}
	for _, values := range popped {
		var next [pushers]int
		for _, v := range values {
			var pusher, k int
			_, err := fmt.Sscanf(v, "%d %d", &pusher, &k)
			require.NoError(t, err)
			require.GreaterOrEqual(t, k, next[pusher], "%q is late", v)
			next[pusher], seen[v] = k+1, true
		}
	}
	require.Len(t, seen, pushers*each)
}

// crowdOfChanges checks that a list, and a watch from the revision before it, miss nothing.
func crowdOfChanges(t *testing.T, open func() *store.Store) {
	const n = 300
	a, b, ctx := open(), open(), bounded(t)
	setting := make(chan error, 1)
	go func() {
		var errs []error
		for i := range n {
			errs = append(errs, b.Set(ctx, fmt.Sprint(i), nil, nil))
		}
		setting <- errors.Join(errs...)
	}()
	rev, err := a.Revision(ctx)
	require.NoError(t, err)
	have := map[string]bool{}
	for e, err := range a.List(ctx, "") {
		require.NoError(t, err)
		have[e.Key] = true
	}
	require.NoError(t, <-setting)
	if len(have) == n {
		return
	}
	for e, err := range a.Watch(ctx, "", max(rev, 1)) {
		require.NoError(t, err)
		if have[e.Key] = true; len(have) == n {
			break
		}
	}
}

func crowdOfRanks(t *testing.T, open func() *store.Store) {
	const ranks, rounds = 16, 50
	var stores []*store.Store
	for range ranks {
		stores = append(stores, open())
	}
	g, ctx := teamOf(t, stores...), bounded(t)
	g.all(func(rank int, _ *store.Store) error {
		for seq := range uint64(rounds) {
			if _, err := g.gather(ctx, rank, seq+1, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// rootAndReader checks that a root that waits for its reader goes on when that has come along.
func rootAndReader(t *testing.T, open func() *store.Store) {
	const rounds = 300 // the root may be 128 ahead
	g, ctx := teamOf(t, open(), open()), bounded(t)
	g.all(func(rank int, s *store.Store) error {
		for i := range rounds {
			c := wire.Contribution{Generation: g.gen, Rank: rank, Seq: uint64(i + 1), Verb: "broadcast", RootOnly: true} // #nosec G115 -- small
			values, err := s.Collect(ctx, c, []byte{byte(i)})
			if err != nil {
				return err
			}
			if got := bytes.Join(values, nil); rank == 1 && !bytes.Equal(got, []byte{byte(i)}) {
				return fmt.Errorf("round %d: %v", i, got)
			}
		}
		return nil
	})
}

func manyMessages(t *testing.T, open func() *store.Store) {
	const n = 1000 // the sender may be 64 ahead
	g, ctx := teamOf(t, open(), open()), bounded(t)
	g.all(func(rank int, _ *store.Store) error {
		for i := range n {
			if rank == 0 {
				if err := g.send(fmt.Append(nil, i)); err != nil {
					return err
				}
				continue
			}
			m, err := g.recv(ctx, uint64(i+1)) // #nosec G115 -- small
			if err != nil || string(m) != fmt.Sprint(i) {
				return fmt.Errorf("message %d is %q: %w", i, m, err)
			}
		}
		return nil
	})
}

// cancelledRecvs checks that a recv that is cancelled while its message arrives does not lose it.
func cancelledRecvs(t *testing.T, open func() *store.Store) {
	g := teamOf(t, open(), open())
	for pos := range uint64(20) {
		ctx, cancel := context.WithCancel(bounded(t))
		cancelled := make(chan error, 1)
		go func() {
			_, err := g.recv(ctx, pos+1)
			cancelled <- err
		}()
		sent := make(chan error, 1)
		go func() { sent <- g.send(fmt.Append(nil, pos)) }()
		cancel()
		if err := <-cancelled; err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.NoError(t, <-sent)
		m, err := g.recv(bounded(t), pos+1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(pos), string(m))
	}
}

// TestCloseOfALeaseByMany checks that the first Close of a lease ends it, and that no later one ends
// entries that were set since.
func TestCloseOfALeaseByMany(t *testing.T) {
	s, ctx := direct(t)(), bounded(t)
	l, err := s.Lease(ctx, testTimeout)
	require.NoError(t, err)
	require.NoError(t, s.Set(ctx, "key", nil, &store.SetOptions{Lease: l}))
	together(t, 4, func() error { return l.Close(ctx) })
	require.NoError(t, s.Set(ctx, "key", []byte("other"), nil))
	require.NoError(t, l.Close(ctx))
	holds(t, s, "key", "other")
}

// TestALeaseOfManyEntries checks that a lease ends together with thousands of entries.
func TestALeaseOfManyEntries(t *testing.T) {
	const n = 3000
	s, ctx := direct(t)(), bounded(t)
	l, err := s.Lease(ctx, testTimeout)
	require.NoError(t, err)
	var next atomic.Int64
	together(t, 8, func() error {
		for i := next.Add(1); i <= n; i = next.Add(1) {
			if err := s.Set(ctx, fmt.Sprint("many/", i), nil, &store.SetOptions{Lease: l}); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, s.Set(ctx, "one", nil, nil))
	require.NoError(t, l.Close(ctx))
	var left []string
	for key, err := range s.Keys(ctx, "") {
		require.NoError(t, err)
		left = append(left, key)
	}
	require.Equal(t, []string{"one"}, left)
}
