package pgroup_test

import (
	"context"
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

func TestShutdownThenClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		over := g.Context()
		ok(t, g, "shutdown", g.Shutdown(t.Context()))
		ended(t, over)
		ended(t, g.Context())
		for what, err := range map[string]error{
			"cause":    context.Cause(over),
			"barrier":  g.Barrier(t.Context()),
			"send":     pgroup.Send(t.Context(), g, 0, 1),
			"channel":  g.Channel("c").Barrier(t.Context()),
			"shutdown": g.Shutdown(t.Context()),
		} {
			assert.ErrorIs(t, err, pgroup.ErrClosed, "rank %d: %s: got %v, want ErrClosed", g.Rank(), what, err)
		}
		_, err := g.Sub(t.Context(), "sub", upTo(g.Size())...)
		assert.ErrorIs(t, err, pgroup.ErrClosed)
		_, err = g.Expired(t.Context())
		assert.ErrorIs(t, err, pgroup.ErrClosed)
		ok(t, g, "close", g.Close())
		g.Abort(nil)
	})
}

func TestShutdownNamesMissingRanks(t *testing.T) {
	bubble(t, func(*pgroup.Config) {}, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 0 {
			v := rankError(t, g, g.Shutdown(within(t, time.Second)), pgroup.ErrTimeout, "shutdown of group", "missing rank 1", "recv from rank 0")
			equal(t, g, "missing", v.Missing, []int{1})
			return
		}
		_, err := pgroup.Recv[int](t.Context(), g, 0)
		rankError(t, g, err, pgroup.ErrLeft, "rank 0 left")
	})
}

// TestCloseUnblocks checks that Close ends the calls that wait on this handle.
func TestCloseUnblocks(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() != 1 {
			v := rankError(t, g, g.Barrier(t.Context()), pgroup.ErrLeft, "rank 1 left")
			equal(t, g, "left", v.Left, []int{1})
			return
		}
		received := later(func() error { _, err := pgroup.Recv[int](t.Context(), g, 0); return err })
		met := later(func() error { return g.Channel("c").Barrier(t.Context()) })
		// Both calls count as started when the store has them: later requests reach it after them.
		for range 20 {
			ok(t, g, "send", pgroup.Send(t.Context(), g, 1, 1))
		}
		together(3, func(int) { ok(t, g, "close", g.Close()) })
		assert.ErrorIs(t, <-received, pgroup.ErrClosed)
		assert.ErrorIs(t, <-met, pgroup.ErrClosed)
	}, 2, 4)
}

// TestHostThatClosesHasLeft checks that a host that closes is reported as ErrLeft, to ranks that
// wait for it or for the store.
func TestHostThatClosesHasLeft(t *testing.T) {
	ranks(t, 3, hosted, func(t *testing.T, g *pgroup.Group) {
		ok(t, g, "barrier", g.Barrier(t.Context()))
		if g.Rank() == 0 {
			ok(t, g, "close", g.Close())
			return
		}
		for range 3 {
			v := rankError(t, g, g.Barrier(t.Context()), pgroup.ErrLeft, "rank 0 left")
			equal(t, g, "left", v.Left, []int{0})
		}
	})
}

func TestDefaultTimeout(t *testing.T) {
	bubble(t, func(c *pgroup.Config) { c.Timeout = 0 }, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			return
		}
		start := time.Now()
		rankError(t, g, g.Barrier(context.Background()), pgroup.ErrTimeout, "timed out after 20.00s", "missing rank 1")
		equal(t, g, "time", time.Since(start), 20*time.Second)
	})
}

func TestNoAnswerIsUnknown(t *testing.T) {
	s := hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
		if req.Op == wire.OpCollect {
			<-ctx.Done()
			return ctx.Err()
		}
		return next.Do(ctx, req, rep)
	})
	ranks(t, 2, all(pgroup.Config{Store: s}), func(t *testing.T, g *pgroup.Group) {
		err := g.Barrier(within(t, 10*time.Millisecond))
		rankError(t, g, err, pgroup.ErrUnknown, "no answer from the store", "outcome unknown")
		rankError(t, g, err, context.DeadlineExceeded)
	})
}

// TestExpiredSessionNamesItsOwnRank checks the error of a rank that was disconnected for too long:
// it names that rank, and not the one that hosts the store.
func TestExpiredSessionNamesItsOwnRank(t *testing.T) {
	links := make([]testcluster.Links, 3)
	var through, lost sync.WaitGroup
	through.Add(3)
	lost.Add(2)
	ranks(t, 3, linked(hosted, links), func(t *testing.T, g *pgroup.Group) {
		ok(t, g, "barrier", g.Barrier(t.Context()))
		through.Done()
		through.Wait()
		if g.Rank() != 1 {
			err := g.Barrier(t.Context())
			rankError(t, g, err, pgroup.ErrLost, "lost rank 1")
			lost.Done()
			lost.Wait()
			return
		}
		links[1].Cut()
		lost.Wait()
		links[1].Mend()
		err := g.Barrier(t.Context())
		v := rankError(t, g, err, pgroup.ErrLost, "lost rank 1", "its session has expired")
		equal(t, g, "lost", v.Lost, []int{1})
	})
}

// TestASendThatCloseInterruptsIsUnknown checks the error of a Send whose answer a Close does not
// wait for. It may have delivered its message, and the error says so.
func TestASendThatCloseInterruptsIsUnknown(t *testing.T) {
	addr := serve(t)
	proxy := testcluster.NewProxy(t, addr)
	gs := create(t, 2, all(pgroup.Config{Address: "muster://" + addr}).with(func(c *pgroup.Config) {
		if c.Rank == 0 {
			c.Address = "muster://" + proxy.Addr()
		}
	}))
	g, other := gs[0], gs[1]
	proxy.Down.Stall(true)
	sent := later(func() error { return pgroup.Send(t.Context(), g, 1, "m") })
	// it is delivered, which its sender does not know
	got, err := pgroup.Recv[string](t.Context(), other, 0)
	require.NoError(t, err)
	require.Equal(t, "m", got)
	_ = g.Close() // cannot leave properly
	err = <-sent
	require.ErrorIs(t, err, pgroup.ErrClosed)
	require.ErrorIs(t, err, store.ErrUnknown)
}

// TestCloseUnblocksWithoutTheStore checks that Close ends the calls of this handle while a store that others
// use too does not answer.
func TestCloseUnblocksWithoutTheStore(t *testing.T) {
	addr := serve(t)
	proxy, observer := testcluster.NewProxy(t, addr), testcluster.Dial(t, addr, nil)
	s := testcluster.Dial(t, proxy.Addr(), nil)
	gs := create(t, 2, all(pgroup.Config{Store: s}))
	require.NoError(t, pgroup.Send(t.Context(), gs[0], 0, 1))
	received := later(func() error { _, err := pgroup.Recv[int](t.Context(), gs[0], 1); return err })
	testcluster.Eventually(t, 10*time.Second, func() bool { // it is first, and reads for the others
		st, err := observer.Status(t.Context(), "")
		return err == nil && len(st.Groups[0].Ranks[0].Waits) > 0
	}, "no rank receives")
	met := later(func() error { return gs[0].Channel("c").Barrier(t.Context()) })
	other := later(func() error { return gs[1].Barrier(t.Context()) })
	waits := later(func() error { _, err := s.Wait(t.Context(), "k"); return err })
	proxy.Stall(true)
	require.NoError(t, gs[0].Close())
	require.ErrorIs(t, <-received, pgroup.ErrClosed)
	require.ErrorIs(t, <-met, pgroup.ErrClosed)
	proxy.Stall(false)
	require.NoError(t, s.Set(t.Context(), "k", nil, nil))
	require.NoError(t, <-waits, "it is not of the group")
	v := rankError(t, gs[1], <-other, pgroup.ErrLeft, "rank 0 left")
	equal(t, gs[1], "left", v.Left, []int{0})
}
