package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestStoppedProcessExpiresNothing checks that, after its process was stopped, a store first reads
// the requests in its sockets, and then applies the deadlines that have passed meanwhile.
func TestStoppedProcessExpiresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(store.Memory)
		s := store.New(m)
		defer s.Close()
		require.NoError(t, s.Set(t.Context(), "k", nil, &store.SetOptions{TTL: time.Second}))
		store.StandStill(m, time.Hour)
		_, err := s.Get(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(store.Breath - 1)
		_, err = s.Get(t.Context(), "k")
		require.NoError(t, err, "it has breath")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		_, err = s.Get(t.Context(), "k")
		require.ErrorIs(t, err, store.ErrNotFound)
	})
}

// TestStutteringProcessEndsTTLs checks that a TTL does not end before its time, and within a second of
// it as far as the process has run, if the process is stopped again and again, whenever other
// deadlines pass.
func TestStutteringProcessEndsTTLs(t *testing.T) {
	stutter := func(t *testing.T, schedule string, ttl time.Duration, next func() (run, stop, other time.Duration)) {
		synctest.Test(t, func(t *testing.T) {
			m := new(store.Memory)
			s := store.New(m)
			defer s.Close()
			require.NoError(t, s.Set(t.Context(), "k", nil, &store.SetOptions{TTL: ttl}))
			began, stopped := time.Now(), time.Duration(0)
			for err := error(nil); err == nil; _, err = s.Get(t.Context(), "k") {
				require.Less(t, time.Since(began), ttl+time.Second, schedule)
				run, stop, other := next()
				if other > 0 {
					require.NoError(t, s.Set(t.Context(), "other", nil, &store.SetOptions{TTL: other}))
				}
				time.Sleep(run)
				store.StandStill(m, stop)
				stopped += stop
			}
			require.GreaterOrEqual(t, time.Since(began)+stopped, ttl, schedule)
		})
	}
	const ms = time.Millisecond
	for _, run := range []time.Duration{10 * ms, 25 * ms} {
		stutter(t, run.String(), 90*ms, func() (_, _, _ time.Duration) { return run, 200 * ms, 0 })
		stutter(t, run.String(), 5*time.Second, func() (_, _, _ time.Duration) { return run, 200 * ms, run + ms })
	}
	for seed := range testcluster.Form(uint64(300), 30000) {
		r := rand.New(rand.NewPCG(seed, 0))
		longest, most := r.Int64N(100)+1, r.Int64N(2000)+1
		stutter(t, fmt.Sprintf("seed %d", seed), time.Duration(r.Int64N(5000)+1)*ms, func() (run, stop, other time.Duration) {
			run, stop = time.Duration(r.Int64N(longest)+1)*ms, time.Duration(r.Int64N(most))*ms
			if r.IntN(2) == 0 {
				other = time.Duration(r.Int64N(2*longest)+1) * ms
			}
			return run, stop, other
		})
	}
}

// TestALeaseOfAnotherStore checks a lease of one store in another store, which has a lease of the
// same number.
func TestALeaseOfAnotherStore(t *testing.T) {
	a, b := store.New(new(store.Memory)), store.New(new(store.Memory))
	defer a.Close()
	defer b.Close()
	mine, err := a.Lease(bounded(t), time.Minute)
	require.NoError(t, err)
	theirs, err := b.Lease(bounded(t), time.Minute)
	require.NoError(t, err)
	for mine.ID() < theirs.ID() { // of two stores that have opened one after the other
		mine, err = a.Lease(bounded(t), time.Minute)
		require.NoError(t, err)
	}
	require.Equal(t, mine.ID(), theirs.ID())
	require.ErrorIs(t, a.Set(bounded(t), "key", nil, &store.SetOptions{Lease: theirs}), store.ErrDenied)
	part := store.Prefix(store.Prefix(a, "x/"), "y/")
	require.NoError(t, part.Set(bounded(t), "key", nil, &store.SetOptions{Lease: mine}), "a part of the same store")
	require.NoError(t, mine.Close(bounded(t)))
	require.NoError(t, theirs.Close(bounded(t)))
}

// TestPopThatIsCancelled checks that a context that ends in the middle of a Pop loses no value.
func TestPopThatIsCancelled(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	ctx, cancel := context.WithCancel(bounded(t))
	s := store.New(&faulty{Engine: m, do: func(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
		err := m.Do(ctx, req, rep)
		if req.Op == wire.OpPop {
			cancel()
			return errors.Join(err, ctx.Err())
		}
		return err
	}})
	require.NoError(t, s.Push(ctx, "q", []byte("first")))
	v, err := s.Pop(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "first", string(v))
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.Zero(t, m.Keys())
}
