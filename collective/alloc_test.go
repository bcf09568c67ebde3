package collective_test

import (
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
)

// mostAllocated is how many bytes a repeated verb may allocate on one rank.
const mostAllocated = 1 << 10

// TestAllocations measures what verbs allocate in steady state, with contexts without a deadline,
// which cost most. The minimum of several measurements is the steady state: a verb that took long,
// as on a busy machine, has checked on the other ranks.
func TestAllocations(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED: the race detector allocates too")
	}
	const rounds = 4
	over(t, []int{4}, func(t *testing.T, w way, n int) {
		for _, length := range []int{1, 150_000} {
			w.run(t, n, func(r *rank) {
				x, all := make([]float32, length), make([]float32, length*n)
				var xs [][]float32
				for rest := range slices.Chunk(x, length/100+1) {
					xs = append(xs, rest)
				}
				ctx := t.Context()
				verbs := func(times int) {
					for range times {
						assert.NoError(r, collective.AllReduce(ctx, r.c, collective.Avg, x))
						assert.NoError(r, collective.AllReduceAll(ctx, r.c, collective.Avg, xs))
						assert.NoError(r, collective.Broadcast(ctx, r.c, 1, x))
						assert.NoError(r, collective.BroadcastAll(ctx, r.c, 1, xs))
						assert.NoError(r, collective.Reduce(ctx, r.c, 1, collective.Sum, x))
						assert.NoError(r, collective.AllGather(ctx, r.c, all, x))
						assert.NoError(r, collective.ReduceScatter(ctx, r.c, collective.Sum, x, all))
					}
					assert.NoError(r, r.c.Barrier(ctx))
				}
				verbs(3)
				var each []uint64
				for range 4 {
					before := allocated()
					verbs(rounds)
					each = append(each, (allocated()-before)/uint64(rounds*7*n))
				}
				if r.me() == 0 {
					assert.Less(r, slices.Min(each), uint64(mostAllocated), "%d elements", length)
				}
			})
		}
	})
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
