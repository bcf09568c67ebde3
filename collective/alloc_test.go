package collective_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
)

// mostAllocated is how many bytes one verb of one rank may allocate when it has been called before.
const mostAllocated = 1 << 10

// TestAllocations counts what verbs allocate in steady state.
func TestAllocations(t *testing.T) {
	over(t, []int{4}, func(t *testing.T, w way, n int) {
		for _, length := range []int{1, 20_000, 150_000} {
			const rounds = 50
			w.run(t, n, func(r *rank) {
				ctx := t.Context() // without a deadline, which costs more
				x, all := make([]float32, length), make([]float32, length*n)
				step := func() {
					assert.NoError(r, collective.AllReduce(ctx, r.c, collective.Avg, x))
					assert.NoError(r, collective.Broadcast(ctx, r.c, 1, x))
					assert.NoError(r, collective.Reduce(r.ctx, r.c, 1, collective.Sum, x))
					assert.NoError(r, collective.AllGather(ctx, r.c, all, x))
					assert.NoError(r, collective.ReduceScatter(ctx, r.c, collective.Sum, x, all))
				}
				for range 5 {
					step()
				}
				assert.NoError(r, r.c.Barrier(r.ctx))
				var before, after runtime.MemStats
				if r.me() == 0 {
					runtime.ReadMemStats(&before)
				}
				for range rounds {
					step()
				}
				assert.NoError(r, r.c.Barrier(r.ctx))
				if r.me() == 0 {
					runtime.ReadMemStats(&after)

					assert.Less(r, (after.TotalAlloc-before.TotalAlloc)/uint64(rounds*5*n), uint64(mostAllocated), "%d elements", length)
				}
			})
		}
	})
}
