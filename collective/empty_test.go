package collective_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// TestEmptyOnOneRank has one rank pass an empty slice, and the others a non-empty one: the first
// does not succeed by itself.
func TestEmptyOnOneRank(t *testing.T) {
	const n = 3
	for name, verb := range map[string]func(r *rank, k int) error{
		"broadcast": func(r *rank, k int) error { return collective.Broadcast(r.ctx, r.c, 1, make([]float32, k)) },
		"all-gather": func(r *rank, k int) error {
			return collective.AllGather(r.ctx, r.c, make([]float32, n*k), make([]float32, k))
		},
		"reduce-scatter": func(r *rank, k int) error {
			return collective.ReduceScatter(r.ctx, r.c, collective.Sum, make([]float32, k), make([]float32, n*k))
		},
		"all-to-all": func(r *rank, k int) error {
			return collective.AllToAll(r.ctx, r.c, make([]float32, n*k), make([]float32, n*k))
		},
	} {
		t.Run(name, func(t *testing.T) {
			way{host: func(int) string { return "node" }}.run(t, n, func(r *rank) {
				err := verb(r, 5*min(1, r.me()))
				assert.ErrorIs(r, err, pgroup.ErrMismatch)
				assert.ErrorContains(r, err, "rank 0 ")
			})
		})
	}
}
