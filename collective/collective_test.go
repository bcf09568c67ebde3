package collective_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

	set    func(c *pgroup.Config) // nil: nothing else
	listen string
}

func apart(rank int) string { return fmt.Sprint("node ", rank) }

func ways() []way {
	node := func(int) string { return "node" }
	pairs := func(rank int) string { return fmt.Sprint("node ", rank/2) }
	unequal := func(rank int) string { return fmt.Sprint("node ", min(rank, 1)) }
	return []way{
		{name: "memory", host: node},
		{name: "TCP", host: apart},
		{name: "ring", host: apart, alg: collective.Ring},
		{name: "doubling", host: apart, alg: collective.RecursiveDoubling},
		{name: "halving", host: apart, alg: collective.HalvingDoubling},
		{name: "hosts", host: pairs},
		{name: "unequal hosts", host: unequal},
	}
}

// rank is one rank of a test.
type rank struct {
	*testing.T
	way
	ctx context.Context
	g   *pgroup.Group
	c   *collective.Comm
}

func (r *rank) me() int { return r.g.Rank() }

// pid returns the process of a rank.
func (r *rank) pid(rank int) int {
	members, err := r.g.Members(context.Background())
	require.NoError(r, err)
	return members[rank].PID
}

func (w way) options() *collective.Options {
	return &collective.Options{Algorithm: w.alg, Listen: w.listen}
}

// hung is the time after which ranks count as hung, on a busy machine too.
const hung = 2 * time.Minute

// run runs f on n ranks.
func (w way) run(t *testing.T, n int, f func(r *rank)) {
	t.Helper()
	meet := store.New(new(store.Memory))
	defer meet.Close()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx := testcluster.Within(t, hung)
			cfg := pgroup.Config{Rank: i, Size: n, Store: meet, Host: w.host(i)}
			if w.set != nil {
				w.set(&cfg)
			}
			g, err := pgroup.Create(ctx, cfg)
			if !assert.NoError(t, err) {
				return
			}
			defer g.Close()
			c, err := collective.Open(ctx, g, w.options())
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			f(&rank{t, w, ctx, g, c})
		})
	}
	all.Wait()
}

// rankError returns err as the error of a verb.
func (r *rank) rankError(err error) *pgroup.RankError {
	r.Helper()
	re, ok := errors.AsType[*pgroup.RankError](err)
	require.True(r, ok, "%v", err)
	return re
}

func over(t *testing.T, sizes []int, f func(t *testing.T, w way, n int)) {
	for _, w := range ways() {
		for _, n := range sizes {
			t.Run(fmt.Sprint(w.name, "/", n), func(t *testing.T) { f(t, w, n) })
		}
	}
}

// everywhere runs f on the ranks of groups of each size, in each way.
func everywhere(t *testing.T, sizes []int, f func(r *rank, n int)) {
	over(t, sizes, func(t *testing.T, w way, n int) { w.run(t, n, func(r *rank) { f(r, n) }) })
}

// waiting is over for tests that only wait: all of them run at once.
func waiting(t *testing.T, n int, f func(t *testing.T, w way, n int)) {
	t.Parallel()
	named := map[string]way{}
	for _, w := range ways() {
		named[w.name] = w
	}
	testcluster.AtOnce(t, maps.All(named), func(t *testing.T, w way) { f(t, w, n) })
}

// vector returns small integers, whose sums are exact in any order.
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

func sum[T tensor.Number](ranks, n int) []T {
	all, out := make([]int64, n), make([]T, n)
	for r := range ranks {
		for i, v := range vector[int64](r, n) {
			all[i] += v
			out[i] = of[T](int(all[i]))
		}
	}
	return out
}

var lengths = []int{0, 1, 3, 5000, long}

func TestVerbs(t *testing.T) {
	everywhere(t, testcluster.Form([]int{1, 4}, []int{1, 2, 3, 4, 5, 8}), func(r *rank, n int) {
		for _, length := range lengths {
			require.NoError(r, r.reduces(length))
			for _, root := range []int{0, n - 1} {
				x := vector[float64](r.me(), length)
				require.NoError(r, collective.Reduce(r.ctx, r.c, root, collective.Sum, x))
				want := vector[float64](r.me(), length)
				if r.me() == root {
					want = sum[float64](n, length)
				}
				assert.True(r, slices.Equal(want, x), "reduce %d to %d", length, root)
				b := vector[uint16](r.me(), length)
				require.NoError(r, collective.Broadcast(r.ctx, r.c, root, b))
				assert.True(r, slices.Equal(vector[uint16](root, length), b), "broadcast %d from %d", length, root)
			}
			src, dst := vector[int32](r.me(), length*n), make([]int32, length)
			require.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, dst, src))
			assert.True(r, slices.Equal(sum[int32](n, length*n)[r.me()*length:][:length], dst), "reduce-scatter %d", length)

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
}

func TestSendRecv(t *testing.T) {
	everywhere(t, []int{2, 3}, func(r *rank, n int) {
		next, prev := (r.me()+1)%n, (r.me()+n-1)%n
		for _, length := range lengths {
			var both sync.WaitGroup
			both.Go(func() { assert.NoError(r, collective.Send(r.ctx, r.c, next, vector[float32](r.me(), length))) })
			got := make([]float32, length)
			assert.NoError(r, collective.Recv(r.ctx, r.c, prev, got))
			both.Wait()
			assert.True(r, slices.Equal(vector[float32](prev, length), got), "%d elements", length)
		}
	})
}

// TestStart starts several verbs at once, which run in order.
func TestStart(t *testing.T) {
	everywhere(t, []int{4}, func(r *rank, n int) {
		var pending []*collective.Pending
		var xs [][]int64
		for i := range 20 {
			x := vector[int64](r.me(), 100*i)
			xs = append(xs, x)
			pending = append(pending, r.c.Start(r.ctx, func(ctx context.Context, c *collective.Comm) error {
				if err := collective.AllReduce(ctx, c, collective.Sum, x); err != nil {
					return err
				}
				return collective.AllReduce(ctx, c, collective.Avg, x)
			}))
		}
		assert.NoError(r, r.c.Barrier(r.ctx))
		ended, cancel := context.WithCancel(r.ctx)
		cancel()
		for i, p := range pending {
			assert.NoError(r, p.Wait(r.ctx))
			for range 20 {
				assert.NoError(r, p.Wait(ended), "it prefers the result")
			}
			assert.True(r, slices.Equal(sum[int64](n, 100*i), xs[i]), "%d", i)
		}
	})
}

// TestOneRankFails has one rank cancel, time out, leave or abort: all ranks soon get an error that
// names it, and the Comm has failed on all of them.
func TestOneRankFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fails func(r *rank)
		is    error
		who   func(re *pgroup.RankError) []int
	}{
		"cancels": {func(r *rank) {
			ctx, cancel := context.WithCancelCause(r.ctx)
			cancel(errors.New("the health check has failed"))
			assert.ErrorIs(r, collective.AllReduce(ctx, r.c, collective.Sum, make([]float32, 1000)), pgroup.ErrCancelled)
		}, pgroup.ErrCancelled, func(re *pgroup.RankError) []int {
			assert.ErrorContains(t, re, "the health check has failed")
			return []int{re.By}
		}},
		"leaves": {func(r *rank) { assert.NoError(r, r.c.Close()) }, pgroup.ErrLeft, func(re *pgroup.RankError) []int { return re.Left }},
		"aborts": {func(r *rank) { r.c.Group().Abort(errors.New("no cheese")) }, pgroup.ErrAborted, func(re *pgroup.RankError) []int { return []int{re.By} }},
	} {
		t.Run(name, func(t *testing.T) {
			over(t, []int{2, 4}, func(t *testing.T, w way, n int) {
				done := make(chan struct{}) // closed when the others have the error
				var others sync.WaitGroup
				others.Add(n - 1)
				go func() { others.Wait(); close(done) }()
				w.run(t, n, func(r *rank) {
					if r.me() != 1 {
						defer others.Done()
					}
					var err error
					// the last may fail here, if the others have completed it
					for i := 0; i < 3 && err == nil; i++ {
						err = collective.AllReduce(r.ctx, r.c, collective.Sum, make([]float32, 1000))
					}
					if r.me() == 1 {
						test.fails(r)
						<-done
						return
					}
					start := time.Now()
					for err == nil && time.Since(start) < 10*time.Second {
						err = collective.AllReduce(r.ctx, r.c, collective.Sum, make([]float32, 1000))
					}
					assert.ErrorIs(r, err, test.is)
					assert.Equal(r, []int{1}, test.who(r.rankError(err)), "%v", err)
					assert.ErrorIs(r, r.c.Barrier(r.ctx), test.is)
				})
			})
		})
	}
}
