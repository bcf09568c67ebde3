package dataparallel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// TestErrorsNameTheCall checks that an error names the call that failed and its ranks, and none of
// the verbs that implement the call.
func TestErrorsNameTheCall(t *testing.T) {
	t.Parallel()
	grads := func() map[string]*tensor.Tensor {
		return map[string]*tensor.Tensor{"w": tensor.From([]float32{1, 2})}
	}
	hides := func(r *rank, err error, is error) {
		re, ok := errors.AsType[*pgroup.RankError](err)
		if !assert.True(r.T, ok, "%v", err) {
			return
		}
		assert.ErrorIs(r.T, err, is)
		assert.Contains(r.T, err.Error(), "dataparallel.allreduce_gradients")
		assert.NotContains(r.T, err.Error(), "collective.allgather")
		assert.NotContains(r.T, err.Error(), "U64")
		assert.Equal(r.T, "world", re.Group)
	}
	t.Run("a rank is late", func(t *testing.T) {
		over := make(chan struct{})
		ways[1].run(t, 2, func(r *rank) {
			if r.Rank() == 1 {
				<-over
				return
			}
			defer close(over)
			ctx, cancel := context.WithTimeout(r.ctx, 500*time.Millisecond)
			defer cancel()
			err := r.AllReduceGradients(ctx, grads())
			hides(r, err, context.DeadlineExceeded)
			assert.ErrorContains(r.T, err, "missing rank 1")
		})
	})
	t.Run("a rank calls something else", func(t *testing.T) {
		ways[0].run(t, 2, func(r *rank) {
			if r.Rank() == 0 {
				hides(r, r.AllReduceGradients(r.ctx, grads()), pgroup.ErrMismatch)
				return
			}
			assert.ErrorIs(r.T, r.comm.Barrier(r.ctx), pgroup.ErrMismatch)
		})
	})
}
