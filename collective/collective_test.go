package collective_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// way is where ranks are, and how they reduce.
type way struct {
	name string
	host func(rank int) string
	alg  collective.Algorithm
	proc bool // as if each rank were a process
}

func apart(rank int) string { return fmt.Sprint("node ", rank) }

func ways() []way {
	return []way{
		{"one process", func(int) string { return "node" }, collective.Auto, false},
		{"processes", func(int) string { return "node" }, collective.Auto, true},
		{"hosts of processes", func(rank int) string { return fmt.Sprint("node ", rank/3) }, collective.Auto, true},
		{"TCP", apart, collective.Auto, false},
		{"ring", apart, collective.Ring, false},
		{"doubling", apart, collective.RecursiveDoubling, false},
		{"halving", apart, collective.HalvingDoubling, false},
		{"hosts", func(rank int) string { return fmt.Sprint("node ", rank/2) }, collective.Auto, false},
		{"unequal hosts", func(rank int) string { return fmt.Sprint("node ", min(rank, 1)) }, collective.Auto, false},
	}
}

// rank is one rank of a test.
type rank struct {
	*testing.T
	ctx context.Context
	g   *pgroup.Group
	c   *collective.Comm
}

func (r *rank) me() int { return r.g.Rank() }

// run has n ranks do f.
func (w way) run(t *testing.T, n int, f func(r *rank)) {
	t.Helper()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			g, err := pgroup.Create(ctx, pgroup.Config{Rank: i, Size: n, Store: meet, Host: w.host(i)})
			if !assert.NoError(t, err) {
				return
			}
			defer g.Close()
			o := &collective.Options{Algorithm: w.alg}
			if w.proc {
				collective.Apart(o, fmt.Sprint(i))
			}
			c, err := collective.Open(ctx, g, o)
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			f(&rank{t, ctx, g, c})
		})
	}
	all.Wait()
}

func over(t *testing.T, sizes []int, f func(t *testing.T, w way, n int)) {
	for _, w := range ways() {
		for _, n := range sizes {
			t.Run(fmt.Sprint(w.name, "/", n), func(t *testing.T) { f(t, w, n) })
		}
	}
}

// vector has small whole numbers, whose sums are exact in any order.
func vector[T tensor.Number](rank, n int) []T {
	r := rand.New(rand.NewPCG(uint64(rank), uint64(n)))
	x := make([]T, n)
	for i := range x {
		x[i] = of[T](r.IntN(8))
	}
	return x
}

func of[T tensor.Number](v int) T {
	switch p := any(new(T)).(type) {
	case *tensor.Float16:
		*p = tensor.Float16From(float32(v))
		return T(*p)
	case *tensor.BFloat16:
		*p = tensor.BFloat16From(float32(v))
		return T(*p)
	}
	return T(v)
}

func sum[T tensor.Number](ranks, n, div int) []T {
	out := make([]T, n)
	all := make([]int, n)
	for r := range ranks {
		rr := rand.New(rand.NewPCG(uint64(r), uint64(n)))
		for i := range all {
			all[i] += rr.IntN(8)
		}
	}
	for i := range out {
		out[i] = of[T](all[i] / div)
	}
	return out
}

var lengths = []int{0, 1, 3, 1000, 5000, 300_001}

func TestAllReduce(t *testing.T) {
	over(t, []int{1, 2, 3, 4, 5, 7, 8}, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			for _, length := range lengths {
				x := vector[float32](r.me(), length)
				if !assert.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Sum, x)) {
					return
				}
				assert.True(r, slices.Equal(sum[float32](n, length, 1), x), "%d elements", length)
				y := vector[int64](r.me(), length)
				if !assert.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Avg, y)) {
					return
				}
				assert.True(r, slices.Equal(sum[int64](n, length, n), y), "%d integers", length)
				h := vector[tensor.BFloat16](r.me(), length)
				if !assert.NoError(r, collective.AllReduce(r.ctx, r.c, collective.Sum, h)) {
					return
				}
				assert.True(r, slices.Equal(sum[tensor.BFloat16](n, length, 1), h), "%d halves", length)
			}
		})
	})
}

func TestVerbs(t *testing.T) {
	over(t, []int{1, 2, 3, 4, 6}, func(t *testing.T, w way, n int) {
		w.run(t, n, func(r *rank) {
			for _, length := range lengths {
				for _, root := range []int{0, n - 1} {
					x := vector[float64](r.me(), length)
					require.NoError(r, collective.Reduce(r.ctx, r.c, root, collective.Sum, x))
					want := vector[float64](r.me(), length)
					if r.me() == root {
						want = sum[float64](n, length, 1)
					}
					assert.True(r, slices.Equal(want, x), "reduce %d to %d", length, root)
					b := vector[uint16](r.me(), length)
					require.NoError(r, collective.Broadcast(r.ctx, r.c, root, b))
					assert.True(r, slices.Equal(vector[uint16](root, length), b), "broadcast %d from %d", length, root)
				}
				src, dst := vector[int32](r.me(), length*n), make([]int32, length)
				require.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, dst, src))
				assert.True(r, slices.Equal(sum[int32](n, length*n, 1)[r.me()*length:][:length], dst), "reduce-scatter %d", length)

				one, all := vector[int8](r.me(), length), make([]int8, length*n)
				require.NoError(r, collective.AllGather(r.ctx, r.c, all, one))
				var want []int8
				for i := range n {
					want = append(want, vector[int8](i, length)...)
				}
				assert.True(r, slices.Equal(want, all), "all-gather %d", length)

				a2a := make([]int32, length*n)
				require.NoError(r, collective.AllToAll(r.ctx, r.c, a2a, src))
				var parts []int32
				for i := range n {
					parts = append(parts, vector[int32](i, length*n)[r.me()*length:][:length]...)
				}
				assert.True(r, slices.Equal(parts, a2a), "all-to-all %d", length)
				require.NoError(r, r.c.Barrier(r.ctx))
			}
		})
	})
}
