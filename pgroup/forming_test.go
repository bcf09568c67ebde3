package pgroup_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestCreateHasOneOutcome checks that with 1 to 3 of 8 ranks absent, and a different deadline on
// each of the others, all present ranks get the same error, which names exactly the absent ranks.
// MUSTER_SOAK makes 1,008 runs of the 12.
func TestCreateHasOneOutcome(t *testing.T) {
	const atOnce = 12
	for batch := range testcluster.Form(1, 84) {
		together(atOnce, func(i int) { checkOutcome(t, batch*atOnce+i) })
	}
}

func checkOutcome(t *testing.T, run int) {
	const size = 8
	rng := rand.New(rand.NewPCG(1, uint64(run)))
	place := []place{hosted, served, anyStore, relayed}[run%4](t)
	absent := rng.Perm(size)[:1+rng.IntN(3)]
	if run%4 == 0 { // rank 0 hosts
		absent = slices.DeleteFunc(absent, func(rank int) bool { return rank == 0 })
		if len(absent) == 0 {
			absent = []int{1 + rng.IntN(size-1)}
		}
	}
	slices.Sort(absent)
	var deadlines [size]time.Duration
	for rank := range deadlines {
		deadlines[rank] = time.Second + time.Duration(rng.Int64N(int64(time.Second)))
	}
	var outcomes [size]*wire.Failure
	together(size, func(rank int) {
		if slices.Contains(absent, rank) {
			return
		}
		c := place(rank)
		c.Rank, c.Size = rank, size
		_, err := pgroup.Create(within(t, deadlines[rank]), c)
		assert.ErrorIs(t, err, context.DeadlineExceeded, "run %d, rank %d", run, rank)
		re, _ := errors.AsType[*pgroup.RankError](err)
		if assert.NotNil(t, re, "run %d, rank %d: %v", run, rank, err) {
			outcomes[rank] = re.Failure
		}
	})
	var first *wire.Failure
	for rank, outcome := range outcomes {
		if outcome == nil {
			continue
		}
		first = cmp.Or(first, outcome)
		assert.Equal(t, absent, outcome.Missing, "run %d, rank %d", run, rank)
		assert.Equal(t, first.Waited, outcome.Waited, "run %d, rank %d", run, rank)
		assert.Equal(t, first.By, outcome.By, "run %d, rank %d", run, rank)
	}
}

// forming waits until present ranks are in an attempt to form a group, or in a group that has formed.
func forming(t *testing.T, s *store.Store, present int) {
	t.Helper()
	testcluster.Eventually(t, 10*time.Second, func() bool {
		st, err := s.Status(t.Context(), "")
		return err == nil && slices.ContainsFunc(st.Groups, func(g store.GroupStatus) bool { return g.Present == present })
	}, "there is no group of so many ranks")
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
	closeAll(gs)
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
	first := make(chan error, 1)
	go func() {
		_, err := pgroup.Create(ctx, pgroup.Config{Rank: 1, Size: 2, Store: s})
		first <- err
	}()
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
	s, waits := testcluster.Store(t)(), make(chan error)
	go func() {
		_, err := pgroup.Create(t.Context(), pgroup.Config{Rank: 0, Size: 3, Store: s})
		waits <- err
	}()
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
