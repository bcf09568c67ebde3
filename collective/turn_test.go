package collective_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// TestTurnHasADeadline has a verb that waits behind a long one: its context ends it, for all ranks.
func TestTurnHasADeadline(t *testing.T) {
	waiting(t, 2, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			release := make(chan struct{})
			p := r.c.Start(r.ctx, func(context.Context, *collective.Comm) error { <-release; return nil })
			ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
			defer cancel()
			assert.ErrorIs(r, r.c.Barrier(ctx), pgroup.ErrTimeout)
			close(release)
			assert.NoError(r, p.Wait(r.ctx))
		})
	})
}

// TestCloseInStart closes the Comm in a function that Start runs.
func TestCloseInStart(t *testing.T) {
	over(t, []int{2}, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			assert.NoError(r, r.c.Start(r.ctx, func(ctx context.Context, c *collective.Comm) error { return c.Shutdown(ctx) }).Wait(r.ctx))
			assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrClosed)
		})
	})
}
