package pgroup_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// forming waits until present ranks are in an attempt to form a group, or in a group that has formed.
func forming(t *testing.T, s *store.Store, present int) {
	t.Helper()
	testcluster.Eventually(t, 10*time.Second, func() bool {
		st, err := s.Status(t.Context(), "")
		return err == nil && slices.ContainsFunc(st.Groups, func(g store.GroupStatus) bool { return g.Present == present })
	}, "there is no group of so many ranks")
}

// fails calls Create in a goroutine, and sends its error.
func fails(ctx context.Context, c pgroup.Config) <-chan error {
	return later(func() error { _, err := pgroup.Create(ctx, c); return err })
}

// TestCreateThatTimesOutUnknown checks a store that freezes while a rank joins. The rank's error
// matches ErrUnknown. When the store resumes, no rank waits for the one that timed out, and that
// one may retry at once, in the same session.
func TestCreateThatTimesOutUnknown(t *testing.T) {
	addr := serve(t)
	proxy := testcluster.NewProxy(t, addr)
	direct, err := store.Dial(t.Context(), addr, nil)
	require.NoError(t, err)
	defer direct.Close()
	slow, err := store.Dial(t.Context(), proxy.Addr(), nil)
	require.NoError(t, err)
	defer slow.Close()
	var g0 *pgroup.Group
	var wg sync.WaitGroup
	wg.Go(func() {
		if g0, err = pgroup.Create(t.Context(), pgroup.Config{Rank: 0, Size: 2, Store: direct}); err != nil {
			t.Error(err)
		}
	})
	forming(t, direct, 1)
	proxy.Up.Stall(true)
	_, unknown := pgroup.Create(within(t, 50*time.Millisecond), pgroup.Config{Rank: 1, Size: 2, Store: slow})
	says(t, unknown, pgroup.ErrUnknown, `create of group "world" on rank 1 of 2`, "outcome unknown")
	says(t, unknown, context.DeadlineExceeded)
	proxy.Up.Stall(false)
	wg.Wait()
	if t.Failed() {
		return
	}
	start := time.Now()
	says(t, g0.Barrier(t.Context()), pgroup.ErrLeft, "rank 1 left")
	assert.LessOrEqual(t, time.Since(start), 10*time.Second, "for a rank that had given up")
	_ = g0.Close()
	gs := create(t, 2, func(*testing.T) func(int) pgroup.Config {
		return func(rank int) pgroup.Config { return pgroup.Config{Store: []*store.Store{direct, slow}[rank]} }
	})
	together(2, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
}

// TestCreateAgainReplacesItsStaleMembership checks a rank that joins, and is disconnected before it
// gets an answer. Its next attempt, over another connection, replaces the first, whose group has formed.
func TestCreateAgainReplacesItsStaleMembership(t *testing.T) {
	addr := serve(t)
	proxy := testcluster.NewProxy(t, addr)
	direct, err := store.Dial(t.Context(), addr, nil)
	require.NoError(t, err)
	defer direct.Close()
	join := func(rank int) *pgroup.Group {
		g, err := pgroup.Create(within(t, 20*time.Second), pgroup.Config{Rank: rank, Size: 2, Address: "muster://" + addr})
		assert.NoError(t, err, "rank %d", rank)
		return g
	}
	gs := make([]*pgroup.Group, 2)
	var zero sync.WaitGroup
	zero.Go(func() { gs[0] = join(0) })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := store.Dial(t.Context(), proxy.Addr(), nil)
	require.NoError(t, err)
	proxy.Down.Stall(true)
	first := fails(ctx, pgroup.Config{Rank: 1, Size: 2, Store: s})
	forming(t, direct, 2)
	zero.Wait()
	proxy.Blackhole(true) // the cancel is not delivered either
	cancel()
	says(t, <-first, pgroup.ErrUnknown)

	// the group ends for rank 0 when rank 1 has replaced its own membership
	zero.Go(func() {
		says(t, gs[0].Barrier(t.Context()), pgroup.ErrLeft, "rank 1 left")
		_ = gs[0].Close()
		gs[0] = join(0)
	})
	gs[1] = join(1)
	zero.Wait()
	if !t.Failed() {
		together(2, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
	}
	closeAll(gs)
	proxy.Cut(testcluster.RST)
	_ = s.Close()
}

// TestACauseReachesAllRanks checks that the reason for which a rank has cancelled is in the errors
// of the others: of an operation, and of a group that forms.
func TestACauseReachesAllRanks(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the health check has failed"))
	ranks(t, 3, anyStore, func(t *testing.T, g *pgroup.Group) {
		own := t.Context()
		if g.Rank() == 1 {
			own = ctx
		}
		rankError(t, g, g.Barrier(own), pgroup.ErrCancelled, "the health check has failed")
	})
	s := testcluster.Store(t)()
	waits := fails(t.Context(), pgroup.Config{Rank: 0, Size: 3, Store: s})
	forming(t, s, 1)
	ctx, cancel = context.WithCancelCause(t.Context())
	go func() {
		forming(t, s, 2)
		cancel(errors.New("the health check has failed"))
	}()
	_, err := pgroup.Create(ctx, pgroup.Config{Rank: 1, Size: 3, Store: s})
	for _, err := range []error{err, <-waits} {
		says(t, err, pgroup.ErrCancelled, "the health check has failed", "missing rank 2")
	}
}
