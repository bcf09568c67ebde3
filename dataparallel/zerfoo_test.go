package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// The tests of this file and zerfoo_node_test.go check what Zerfoo's package distributed promises.
// Those with a number check where it fails.

func TestZerfooMetrics(t *testing.T) {
	seen := make([]testcluster.Events, 3)
	var all sync.WaitGroup
	open := testcluster.Store(t)
	for i := range seen {
		all.Go(func() {
			g, err := pgroup.Create(bounded(t), pgroup.Config{Name: "world", Rank: i, Size: 3, Store: open()})
			if !assert.NoError(t, err) {
				return
			}
			defer g.Close()
			c, err := collective.Open(bounded(t), g, nil)
			if !assert.NoError(t, err) {
				return
			}
			a := dataparallel.New(c, &dataparallel.Options{Trace: &seen[i]})
			grads := map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 100), "b": tensor.New(tensor.F64)}
			for range 3 {
				assert.NoError(t, a.AllReduceGradients(bounded(t), grads))
			}
			assert.NoError(t, a.BroadcastTensors(bounded(t), 2, grads))
			assert.NoError(t, a.BroadcastTensor(bounded(t), 2, grads["b"]))
			assert.NoError(t, a.Barrier(bounded(t)))
			assert.Error(t, a.BroadcastTensor(bounded(t), 3, grads["b"]))
			assert.NoError(t, a.Shutdown(bounded(t)))
		})
	}
	all.Wait()
	ops := []string{"allreduce_gradients", "allreduce_gradients", "allreduce_gradients", "broadcast_tensors", "broadcast_tensor", "barrier", "broadcast_tensor", "shutdown"}
	bytes := []int64{408, 408, 408, 408, 8, 0, 0, 0}
	for i := range seen {
		es := seen[i].All()
		require.Len(t, es, len(ops))
		for nth, e := range es {
			require.Equal(t, [...]any{"dataparallel." + ops[nth], "world", i, 3, uint64(nth + 1), -1}, [...]any{e.Op, e.Group, e.Rank, e.Size, e.Seq, e.Last})
			require.Equal(t, bytes[nth], e.Bytes, e.Op)
			require.Equal(t, nth == 6, e.Err != nil)
			require.Positive(t, e.Generation)
			require.False(t, e.End.Before(e.Start))
		}
		require.ErrorIs(t, es[6].Err, pgroup.ErrInvalid)
	}
}

// TestZerfoo5Contexts checks that a rank whose context ends also ends the verb for all ranks, whose
// errors name it.
func TestZerfoo5Contexts(t *testing.T) {
	over(t, 3, func(r *rank) {
		ctx := r.ctx
		if r.Rank() == 1 {
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			ctx = cancelled
		}
		err := r.AllReduceGradients(ctx, map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 10)})
		assert.ErrorIs(r, err, context.Canceled)
		if re, ok := errors.AsType[*pgroup.RankError](err); assert.True(r, ok, "%v", err) {
			assert.Equal(r, 1, re.By)
		}
		assert.ErrorIs(r, r.Barrier(r.ctx), context.Canceled, "it is over")
	})
}

// TestZerfoo6Types checks that each dtype is averaged in its own arithmetic.
func TestZerfoo6Types(t *testing.T) {
	half := func(x ...float32) (hs []tensor.Float16) {
		for _, f := range x {
			hs = append(hs, tensor.Float16From(f))
		}
		return hs
	}
	over(t, 2, func(r *rank) {
		first := r.Rank() == 0
		pick := func(a, b float64) float64 {
			if first {
				return a
			}
			return b
		}
		f64 := []float64{pick(1e300, 3e300), pick(1, 1+1e-15)}
		i64 := []int64{1<<53 + 1, -(1<<53 + 1), int64(pick(1, 2)), int64(pick(-1, -2))}
		f16 := half(float32(pick(1.5, 2.5)), 40000, float32(pick(-0.25, 0.5)))
		bf16 := []tensor.BFloat16{tensor.BFloat16From(float32(pick(1, 2)))}
		u8 := []uint8{uint8(pick(10, 20))}
		r.ok(r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{
			"f64": tensor.From(f64), "i64": tensor.From(i64), "f16": tensor.From(f16), "bf16": tensor.From(bf16), "u8": tensor.From(u8),
		}))
		assert.Equal(r, []float64{2e300, 1 + 1e-15/2}, f64)
		assert.Equal(r, []int64{1<<53 + 1, -(1<<53 + 1), 1, -1}, i64, "toward 0")
		assert.Equal(r, half(2, 40000, 0.125), f16, "40000 twice is more than a Float16 has")
		assert.Equal(r, []tensor.BFloat16{tensor.BFloat16From(1.5)}, bf16)
		assert.Equal(r, []uint8{15}, u8)
	})
}

// TestZerfoo8SameBits checks that sums are computed in one order, in every run and on every rank.
func TestZerfoo8SameBits(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			var first []byte
			for run := range 3 {
				got := make([][]byte, 4)
				w.run(t, 4, func(r *rank) {
					if run > 0 { // ranks arrive in another order
						<-time.After(time.Duration((r.Rank()*run)%4) * time.Millisecond)
					}
					got[r.Rank()] = addsUpDifferently(r)
				})
				if first == nil {
					first = got[0]
				}
				for _, b := range got {
					require.Equal(t, first, b)
				}
			}
		})
	}
}

// addsUpDifferently averages numbers whose sum depends on the order, and returns the bits.
func addsUpDifferently(r *rank) (bits []byte) {
	grads := map[string]*tensor.Tensor{}
	for _, n := range []int{3, 100, 700, 20_000} {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(math.Sin(float64(i*(r.Rank()+1)))) * float32(math.Pow(10, float64((i+r.Rank())%7)))
		}
		grads[fmt.Sprint(n)] = tensor.From(x)
	}
	r.ok(r.AllReduceGradients(r.ctx, grads))
	for _, n := range []int{3, 100, 700, 20_000} {
		bits = append(bits, grads[fmt.Sprint(n)].Data...)
	}
	return bits
}

// TestZerfoo8Allocations checks the memory that a 16 MiB all-reduce of 4 ranks allocates, which is
// 179 MiB there.
func TestZerfoo8Allocations(t *testing.T) {
	const rounds = 5
	ways[0].run(t, 4, func(r *rank) {
		grads := map[string]*tensor.Tensor{"large": tensor.New(tensor.F32, 4<<20-300)}
		for i := range 100 {
			grads[fmt.Sprint("small ", i)] = tensor.New(tensor.F32, 3)
		}
		r.ok(r.AllReduceGradients(r.ctx, grads)) // the first call makes the plan
		r.ok(r.Barrier(r.ctx))
		var before, after runtime.MemStats
		if r.Rank() == 0 {
			runtime.ReadMemStats(&before)
		}
		for range rounds {
			r.ok(r.AllReduceGradients(r.ctx, grads))
		}
		r.ok(r.Barrier(r.ctx))
		if r.Rank() == 0 {
			runtime.ReadMemStats(&after)
			each := (after.TotalAlloc - before.TotalAlloc) / rounds / 4
			t.Log(each, "bytes for each call of a rank")
			// the limit of a single verb is tested in collective
			assert.Less(t, each, uint64(mostAllocated))
		}
	})
}
