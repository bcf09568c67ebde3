package vllm_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// memory returns a store in this process.
func memory(t *testing.T) *store.Store {
	s := store.New(new(store.Memory))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// bare returns a store like a TCPStore of PyTorch: it has no times to live, no leases and no lists.
func bare(t *testing.T) *store.Store {
	s := store.New(&hooked{new(store.Memory), func(req *wire.Request) error {
		switch {
		case req.TTL > 0, req.Lease > 0, req.Op == wire.OpGrant, req.Op == wire.OpList, req.Op == wire.OpWatch:
			return store.ErrUnsupported
		}
		return nil
	}})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// serve serves a store at l until the end of the test, or until it is stopped.
func serve(t *testing.T, l net.Listener) (stop func()) {
	t.Helper()
	return testcluster.ServeAt(t, &store.Server{Protocol: &tcpstore.Protocol{}}, l)
}

func dial(t *testing.T, l net.Listener) *store.Store {
	return testcluster.Dial(t, l.Addr().String(), nil)
}

// dialTorch returns a client of the server at l that speaks the TCPStore protocol.
func dialTorch(t *testing.T, l net.Listener) *store.Store {
	t.Helper()
	c, err := tcpstore.Dial(within(t, time.Minute), l.Addr().String(), &tcpstore.Options{ReconnectTimeout: 300 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return store.New(c)
}

// join returns groups of n ranks on s, configured by c.
func join(t *testing.T, s *store.Store, n int, c vllm.Config) []*vllm.Group {
	t.Helper()
	return joinAt(t, slices.Repeat([]*store.Store{s}, n), c)
}

// joinAt is join with a store for each rank.
func joinAt(t *testing.T, at []*store.Store, c vllm.Config) []*vllm.Group {
	t.Helper()
	gs := make([]*vllm.Group, len(at))
	errs := make([]error, len(at))
	together(len(at), func(rank int) {
		c := c
		c.Rank, c.Size, c.Store = rank, len(at), at[rank]
		gs[rank], errs[rank] = vllm.Join(t.Context(), c)
	})
	for _, g := range gs {
		if g != nil {
			t.Cleanup(func() { _ = g.Close() })
		}
	}
	require.NoError(t, errors.Join(errs...))
	return gs
}

// together calls f for each rank at once, and returns when all have returned.
func together(n int, f func(rank int)) {
	var wg sync.WaitGroup
	for rank := range n {
		wg.Go(func() { f(rank) })
	}
	wg.Wait()
}

// each calls verb on each group at once, and requires that all succeed.
func each[T any](t *testing.T, gs []*vllm.Group, verb func(g *vllm.Group) (T, error)) []T {
	t.Helper()
	vs, errs := tryEach(gs, verb)
	require.NoError(t, errors.Join(errs...))
	return vs
}

func tryEach[T any](gs []*vllm.Group, verb func(g *vllm.Group) (T, error)) ([]T, []error) {
	vs, errs := make([]T, len(gs)), make([]error, len(gs))
	together(len(gs), func(i int) { vs[i], errs[i] = verb(gs[i]) })
	return vs, errs
}

// barrier adapts Barrier, which has no result, to each.
func barrier(ctx context.Context) func(g *vllm.Group) (struct{}, error) {
	return func(g *vllm.Group) (struct{}, error) { return struct{}{}, g.Barrier(ctx) }
}

var within = testcluster.Within

// failure requires that err is a RankError that matches target and has all of these words, and
// returns its Failure.
func failure(t *testing.T, err, target error, words ...string) *wire.Failure {
	t.Helper()
	re, is := errors.AsType[*pgroup.RankError](err)
	require.True(t, is, "%v", err)
	require.ErrorIs(t, err, target)
	for _, w := range words {
		require.ErrorContains(t, err, w)
	}
	return re.Failure
}

// keys returns the keys of s that vLLM's protocol uses.
func keys(t *testing.T, s *store.Store) (names []string) {
	t.Helper()
	for e, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		names = append(names, e.Key)
	}
	return names
}
