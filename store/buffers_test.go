package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// buffered serves e with the smallest buffers that a server can have, 64 MiB, of which 48 MiB are
// for large replies.
func buffered(t *testing.T, e store.Backend, limits store.ServerLimits) (addr string) {
	limits.Buffers = 1
	return testcluster.Serve(t, &store.Server{Engine: e, Limits: limits})
}

// TestAnAnswerThatWaitsForRoom fills the buffers by clients that do not read. Calls of another
// client wait until their deadlines meanwhile, and succeed when the buffers have space. Changes
// take effect exactly once.
func TestAnAnswerThatWaitsForRoom(t *testing.T) {
	m := new(store.Memory)
	addr := buffered(t, m, store.ServerLimits{})
	local := store.New(m)
	value := bytes.Repeat([]byte("x"), 16<<20)
	require.NoError(t, local.Set(t.Context(), "k", value, nil))
	const items = 2
	for i := range items {
		err := local.Push(t.Context(), "q", append(bytes.Clone(value[:8<<20]), byte(i)))
		require.NoError(t, err)
	}
	var slow sync.WaitGroup
	defer slow.Wait()
	var proxies []*testcluster.Proxy
	for range 6 {
		p := testcluster.NewProxy(t, addr)
		proxies = append(proxies, p)
		s := dial(t, p.Addr())
		p.Down.Stall(true)
		slow.Go(func() {
			got, err := s.Get(t.Context(), "k")
			assert.NoError(t, err)
			assert.Len(t, got, len(value))
		})
	}
	resume := sync.OnceFunc(func() {
		for _, p := range proxies {
			p.Down.Stall(false)
		}
	})
	defer resume()

	other := dial(t, addr)
	require.Eventually(t, func() bool { // the buffers are full
		ctx := testcluster.Within(t, 300*time.Millisecond)
		_, err := other.Get(ctx, "k")
		return errors.Is(err, context.DeadlineExceeded)
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, other.Set(t.Context(), "small", []byte("v"), nil), "what is small does not wait")
	popped := make(chan error, items)
	for i := range items {
		go func() {
			got, _, err := other.TryPop(t.Context(), "q")
			if err == nil && len(got) != 8<<20+1 {
				err = fmt.Errorf("item %d has %d bytes", i, len(got))
			}
			popped <- err
		}()
	}
	resume()
	for range items {
		require.NoError(t, <-popped)
	}
	got, _, err := other.TryPop(t.Context(), "q")
	require.NoError(t, err)
	require.Nil(t, got, "each was popped once")
	_, err = other.Get(t.Context(), "k")
	require.NoError(t, err)
}

// TestPeersThatDoNotReadDelayOthersForALivenessTimeout checks that, when other replies wait for
// buffer space, the server closes the connections of peers that do not read their large replies,
// whichever liveness timeout those peers have requested.
func TestPeersThatDoNotReadDelayOthersForALivenessTimeout(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it takes several timeouts")
	}
	m := new(store.Memory)
	addr := buffered(t, m, store.ServerLimits{LivenessTimeout: time.Second})
	value := bytes.Repeat([]byte("x"), 16<<20)
	require.NoError(t, store.New(m).Set(t.Context(), "k", value, nil))
	ctx, cancel := context.WithCancel(t.Context())
	var slow sync.WaitGroup
	defer slow.Wait()
	defer cancel()
	for range 6 {
		p := testcluster.NewProxy(t, addr)
		s := testcluster.Dial(t, p.Addr(), &store.DialOptions{LivenessTimeout: time.Hour})
		p.Down.Stall(true)
		slow.Go(func() { _, _ = s.Get(ctx, "k") })
	}
	got, err := dial(t, addr).Get(bounded(t), "k")
	require.NoError(t, err)
	require.Len(t, got, len(value))
}

// TestManyLargeAnswersOverOneConnection checks calls of one connection, and of clients behind one
// relay, whose values become ready at the same time, and exceed the bytes that may be queued for
// one peer (ServerLimits.InFlight).
func TestManyLargeAnswersOverOneConnection(t *testing.T) {
	m := new(store.Memory)
	addr := buffered(t, m, store.ServerLimits{InFlight: 16 << 20})
	r, err := store.NewRelay(t.Context(), "muster://"+addr, nil)
	require.NoError(t, err)
	relayed := buffered(t, r, store.ServerLimits{})
	value := bytes.Repeat([]byte("x"), 4<<20)
	one := dial(t, addr)
	var all sync.WaitGroup
	const n = 32
	for i := range n {
		s := one
		if i%2 == 0 {
			s = dial(t, relayed)
		}
		all.Go(func() {
			got, err := s.Wait(t.Context(), "k")
			assert.NoError(t, err)
			if assert.Len(t, got, 1) {
				assert.Len(t, got[0], len(value))
			}
		})
	}
	counts(t, m, func(s *store.ServerStatus) bool { return s.Calls >= n })
	require.NoError(t, store.New(m).Set(t.Context(), "k", value, nil))
	all.Wait()
	require.Zero(t, counts(t, m, func(*store.ServerStatus) bool { return true }).Dropped, "a connection was cut")
}

// TestLargeAnswersOfIdleSessions checks that the recorded replies of sessions that are idle do not
// count against the memory that other sessions may use.
func TestLargeAnswersOfIdleSessions(t *testing.T) {
	const n, size = 24, 1 << 20
	ctx := testcluster.Within(t, 30*time.Second)
	addr := testcluster.Serve(t, &store.Server{Engine: &store.Memory{Limits: store.Limits{Held: n * size / 2, HeldOf: n * size / 2}}})
	boss := dial(t, addr)
	for range n {
		s := dial(t, addr)
		require.NoError(t, boss.Push(ctx, "q", make([]byte, size)))
		v, err := s.Pop(ctx, "q")
		require.NoError(t, err)
		require.Len(t, v, size)
		require.NoError(t, s.Set(ctx, "k", nil, nil)) // its sequence numbers advance
		require.NoError(t, boss.Push(ctx, "q", make([]byte, size)))
		_, err = s.Pop(ctx, "q") // its last call
		require.NoError(t, err)
	}
	testcluster.Eventually(t, 10*time.Second, func() bool {
		short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
		defer stop()
		_, err := boss.Wait(short, "nothing")
		return !errors.Is(err, store.ErrFull)
	}, "what idle sessions have popped still counts")
}
