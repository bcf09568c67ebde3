package collective_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

// TestCloseWaitsForWhatWasStarted closes a Comm while a function that Start runs is in a verb, and
// another one waits for its turn: both have ended when Close returns.
func TestCloseWaitsForWhatWasStarted(t *testing.T) {
	waiting(t, 2, func(t *testing.T, w way, n int) {
		closed := make(chan struct{})
		w.run(t, n, func(r *rank) {
			r.allReduce(10)
			if r.me() == 1 { // its verb fails
				<-closed
				return
			}
			defer close(closed)
			var ended atomic.Int32
			in := make(chan struct{})
			for range 2 {
				r.c.Start(r.ctx, func(ctx context.Context, c *collective.Comm) error {
					if ended.Load() == 0 {
						close(in)
					}
					err := c.Barrier(ctx)
					assert.ErrorIs(r, err, pgroup.ErrClosed)
					<-time.After(50 * time.Millisecond) // it does not end at once
					ended.Add(1)
					return err
				})
			}
			<-in
			assert.NoError(r, r.c.Close())
			assert.EqualValues(r, 2, ended.Load())
		})
	})
}

// TestTurnHasADeadline has a verb that waits behind a long one: its context ends it, for all ranks.
func TestTurnHasADeadline(t *testing.T) {
	waiting(t, 2, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			release := make(chan struct{})
			p := r.c.Start(r.ctx, func(context.Context, *collective.Comm) error { <-release; return nil })
			assert.ErrorIs(r, r.c.Barrier(testcluster.Within(r, 50*time.Millisecond)), pgroup.ErrTimeout)
			close(release)
			assert.NoError(r, p.Wait(r.ctx))
		})
	})
}

// TestCloseInStart closes the Comm in a function that Start runs.
func TestCloseInStart(t *testing.T) {
	everywhere(t, []int{2}, func(r *rank, _ int) {
		assert.NoError(r, r.c.Start(r.ctx, func(ctx context.Context, c *collective.Comm) error { return c.Shutdown(ctx) }).Wait(r.ctx))
		assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrClosed)
	})
}
