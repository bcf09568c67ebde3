package collective_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestOverlap passes slices that share memory in a way that would overwrite data which is still to
// be sent.
func TestOverlap(t *testing.T) {
	way{host: apart}.run(t, 2, func(r *rank) {
		x := []int32{1, 2, 3, 4}
		next := x[2*(1-r.me()):][:2] // the other rank's part
		assert.ErrorIs(r, collective.AllToAll(r.ctx, r.c, x, x), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.AllToAll(r.ctx, r.c, x[:2], x[1:3]), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, next, x), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.AllGather(r.ctx, r.c, x, next), pgroup.ErrInvalid)
		assert.NoError(r, collective.AllToAll(r.ctx, r.c, x[:2], x[2:]))
		mine := x[2*r.me():][:2]
		assert.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, mine, x))
		assert.NoError(r, collective.AllGather(r.ctx, r.c, x, mine))
		assert.NoError(r, r.c.Barrier(r.ctx))
	})
}

// TestNoSuchAlgorithm lets all ranks ask for an unknown algorithm.
func TestNoSuchAlgorithm(t *testing.T) {
	meet := store.New(new(store.Memory))
	defer meet.Close()
	g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Store: meet})
	require.NoError(t, err)
	defer g.Close()
	_, err = collective.Open(t.Context(), g, &collective.Options{Algorithm: 77})
	assert.ErrorIs(t, err, pgroup.ErrInvalid)
}

// TestDeadlineHasPassed checks the error of a verb that did not begin, since its deadline had
// passed: it has no duration.
func TestDeadlineHasPassed(t *testing.T) {
	way{host: apart}.run(t, 2, func(r *rank) {
		ctx, cancel := context.WithDeadline(r.ctx, time.Now().Add(-time.Second))
		defer cancel()
		err := r.c.Barrier(ctx)
		assert.ErrorIs(r, err, pgroup.ErrTimeout)
		assert.NotContains(r, err.Error(), "after")
	})
}

// TestWaitPrefersTheResult waits for a verb that has ended, with a context that has ended too.
func TestWaitPrefersTheResult(t *testing.T) {
	way{host: apart}.run(t, 1, func(r *rank) {
		p := r.c.Start(r.ctx, func(context.Context, *collective.Comm) error { return nil })
		require.NoError(r, p.Wait(r.ctx))
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		for range 100 {
			assert.NoError(r, p.Wait(ctx))
		}
	})
}
