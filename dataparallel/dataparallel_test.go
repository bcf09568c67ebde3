package dataparallel_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
)

// TestSets checks sets of tensors of many dtypes and sizes, one after the other, and sets that differ in a
// type alone: each tensor is averaged as if it were alone, and the plan of one set is not used for another.
func TestSets(t *testing.T) {
	over(t, 3, func(r *rank) {
		averages := func(grads, want map[string]*tensor.Tensor) {
			r.ok(r.AllReduceGradients(bounded(r.T), grads)) // a time limit for each, and not for all
			for name, g := range grads {
				assert.True(r, bytes.Equal(g.Data, want[name].Data), "%s on rank %d", name, r.Rank())
			}
		}
		same := rand.New(rand.NewPCG(1, 2)) // on all ranks
		for range 30 {
			grads, want := map[string]*tensor.Tensor{}, map[string]*tensor.Tensor{}
			for i := range same.IntN(12) {
				name, n, k := fmt.Sprint("t", i), same.IntN(200), same.IntN(50)
				if same.IntN(10) == 0 {
					n *= 400
				}
				grads[name], want[name] = filled(same.IntN(4), n, k, r.Rank())
			}
			averages(grads, want)
		}
		for kind := range 4 {
			g, want := filled(kind, 8, 3, r.Rank())
			averages(map[string]*tensor.Tensor{"t": g}, map[string]*tensor.Tensor{"t": want})
		}
	})
}

// filled returns a tensor of a kind, and what it is after it is averaged over 3 ranks.
func filled(kind, n, k, rank int) (given, mean *tensor.Tensor) {
	switch kind {
	case 0:
		return tensor.From(repeat(n, float32(k+rank))), tensor.From(repeat(n, float32(k+1)))
	case 1:
		return tensor.From(repeat(n, float64(k*rank))), tensor.From(repeat(n, float64(k)))
	case 2:
		return tensor.From(repeat(n, int16(k-rank))), tensor.From(repeat(n, int16(k)-1))
	}
	return tensor.From(repeat(n, tensor.Float16From(float32(k+rank)))), tensor.From(repeat(n, tensor.Float16From(float32(k+1))))
}

func repeat[T any](n int, x T) []T {
	xs := make([]T, n)
	for i := range xs {
		xs[i] = x
	}
	return xs
}

// TestShapes checks scalars, empty tensors, an empty map, and memory that is unaligned on some of
// the ranks.
func TestShapes(t *testing.T) {
	over(t, 3, func(r *rank) {
		r.ok(r.AllReduceGradients(r.ctx, nil))
		r.ok(r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{}))
		r.ok(r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{"nothing": tensor.New(tensor.F32, 3, 0)}))
		odd := make([]byte, 1+8*300)[1:]
		if r.Rank() == 1 {
			odd = make([]byte, 8*300)
		}
		misaligned, err := tensor.Wrap(odd, tensor.F64, 300)
		r.ok(err)
		copy(misaligned.Data, tensor.From(repeat(300, float64(r.Rank()))).Data)
		scalar := []int32{int32(3 * r.Rank())}
		for range 2 {
			r.ok(r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{
				"misaligned": misaligned, "scalar": {DType: tensor.I32, Data: tensor.From(scalar).Data},
				"none": tensor.New(tensor.F64, 0), "no": tensor.New(tensor.I32, 4, 0, 2), "i8": tensor.From([]int8{1}),
			}))
		}
		assert.Equal(r, int32(3), scalar[0])
		assert.Equal(r, tensor.From(repeat(300, 1.0)).Data, misaligned.Data)
	})
}

// TestBroadcastOfAnyDType broadcasts weights of dtypes without arithmetic, one tensor and several,
// from each root.
func TestBroadcastOfAnyDType(t *testing.T) {
	over(t, 3, func(r *rank) {
		for root := range 3 {
			ts := map[string]*tensor.Tensor{}
			for _, dt := range []tensor.DType{tensor.Bool, tensor.F8E4M3, tensor.F4, tensor.C64, tensor.BF16, tensor.F64} {
				for _, n := range []int{0, 2, 100_000} {
					g := tensor.New(dt, n)
					for i := range g.Data {
						if r.Rank() == root {
							g.Data[i] = byte(i+root) % 2
						}
					}
					ts[fmt.Sprint(dt, n)] = g
				}
			}
			if !r.ok(r.BroadcastTensors(r.ctx, root, ts)) {
				return
			}
			for name, g := range ts {
				for i := range g.Data {
					if g.Data[i] != byte(i+root)%2 {
						assert.Failf(r, "wrong", "%s of root %d on rank %d", name, root, r.Rank())
						break
					}
				}
			}
		}
	})
}

// TestDisagreement lets rank 1 of 3 pass different tensors: all ranks get the same error, which
// names the tensor and the ranks. No tensor changes, and the Strategy remains usable.
func TestDisagreement(t *testing.T) {
	type tensors = map[string]*tensor.Tensor
	scalar := tensor.New(tensor.F32)
	for name, odd := range map[string]struct {
		change func(ts tensors)
		is     error
		says   string
	}{
		"dtype":       {func(ts tensors) { ts["w"] = tensor.New(tensor.F64, 2) }, pgroup.ErrMismatch, `tensor "w" is F64[2] on rank 1, and F32[2,2] on rank 0`},
		"shape":       {func(ts tensors) { ts["w"] = tensor.New(tensor.F32, 4) }, pgroup.ErrMismatch, `tensor "w" is F32[4] on rank 1, and F32[2,2] on rank 0`},
		"one more":    {func(ts tensors) { ts["x"] = scalar }, pgroup.ErrMismatch, `rank 1 has a tensor "x", rank 0 has none`},
		"one missing": {func(ts tensors) { delete(ts, "w") }, pgroup.ErrMismatch, `rank 0 has a tensor "w", rank 1 has none`},
		"other name":  {func(ts tensors) { ts["v"] = ts["w"]; delete(ts, "w") }, pgroup.ErrMismatch, `rank 1 has a tensor "v", rank 0 has none`},
		"none at all": {func(ts tensors) { clear(ts) }, pgroup.ErrMismatch, `rank 0 has a tensor "b", rank 1 has none`},
		"nil":         {func(ts tensors) { ts["w"] = nil }, pgroup.ErrInvalid, `rank 1: tensor "w" is nil`},
		"bool":        {func(ts tensors) { ts["w"] = tensor.New(tensor.Bool, 4) }, pgroup.ErrInvalid, `rank 1: tensor "w" is BOOL, which cannot be averaged`},
		"float 8":     {func(ts tensors) { ts["w"] = tensor.New(tensor.F8E5M2, 4) }, pgroup.ErrInvalid, `rank 1: tensor "w" is F8_E5M2, which cannot be averaged`},
		"float 4":     {func(ts tensors) { ts["w"] = tensor.New(tensor.F4, 4) }, pgroup.ErrInvalid, `rank 1: tensor "w" is F4, which cannot be averaged`},
		"same memory": {func(ts tensors) { ts["b"] = &tensor.Tensor{DType: tensor.I64, Data: ts["w"].Data[8:]} }, pgroup.ErrInvalid, `rank 1: tensors "b" and "w" share memory`},
		"by hand":     {func(ts tensors) { ts["w"] = &tensor.Tensor{DType: tensor.F32, Shape: []int{3}} }, pgroup.ErrInvalid, `rank 1: tensor "w": tensor: F32 of shape [3] has 12 bytes, not 0`},
	} {
		t.Run(name, func(t *testing.T) {
			texts := make([]string, 3)
			ways[1].run(t, 3, func(r *rank) {
				ts := tensors{"w": tensor.From(repeat(4, float32(r.Rank())), 2, 2), "b": tensor.From([]int64{int64(r.Rank())})}
				passed := tensors{"w": ts["w"], "b": ts["b"]}
				if r.Rank() == 1 {
					odd.change(passed)
				}
				err := r.AllReduceGradients(r.ctx, passed)
				fails(r, err, odd.is, odd.says)
				assert.ErrorContains(r, err, fmt.Sprintf(`dataparallel: allreduce_gradients of group "world" on rank %d of 3: `, r.Rank()))
				_, texts[r.Rank()], _ = strings.Cut(fmt.Sprint(err), "of 3: ")
				assert.True(r, tensor.Equal(tensor.From(repeat(4, float32(r.Rank())), 2, 2), ts["w"]))
				r.ok(r.AllReduceGradients(r.ctx, ts))
				assert.True(r, tensor.Equal(tensor.From(repeat(4, float32(1)), 2, 2), ts["w"]))
			})
			require.Equal(t, []string{texts[0], texts[0], texts[0]}, texts)
		})
	}
}

// TestDisagreementOnTheCall lets rank 2 make a different call, or none. Errors name the call that failed and its
// ranks, and none of the operations that implement it.
func TestDisagreementOnTheCall(t *testing.T) {
	w := func() map[string]*tensor.Tensor { return map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 2)} }
	for says, call := range map[string]func(r *rank) error{
		"rank 2 called broadcast_tensors from rank 0, rank 0 called allreduce_gradients": func(r *rank) error { return r.BroadcastTensors(r.ctx, 0, w()) },
		"rank 2: there is no rank 7 in a group of 3":                                     func(r *rank) error { return r.BroadcastTensors(r.ctx, 7, w()) },
		"in barrier #1":  func(r *rank) error { return r.Barrier(r.ctx) }, // which ends the Comm
		"missing rank 2": nil,
	} {
		var others sync.WaitGroup
		others.Add(2)
		ways[1].run(t, 3, func(r *rank) {
			switch {
			case r.Rank() == 2 && call == nil:
				others.Wait()
			case r.Rank() == 2:
				assert.ErrorContains(r, call(r), says)
			default:
				defer others.Done()
				ctx := r.ctx
				if call == nil {
					ctx = within(r.T, 500*time.Millisecond)
				}
				err := r.AllReduceGradients(ctx, w())
				assert.ErrorContains(r, err, says)
				assert.Regexp(r, "^dataparallel(: |.)allreduce_gradients ", err)
				assert.NotContains(r, err.Error(), "collective.allgather")
				assert.NotContains(r, err.Error(), "U64")
			}
		})
	}
}

// TestGoroutinesAtOnce checks that the calls of a rank's goroutines run one at a time. If their
// order is another one than on other ranks, all ranks get an error, and no tensor holds a sum of
// different calls.
func TestGoroutinesAtOnce(t *testing.T) {
	over(t, 3, func(r *rank) {
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				x := repeat(100+i, float32(r.Rank()+i))
				want := float32(1 + i)
				if err := r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{fmt.Sprint(i): tensor.From(x)}); err != nil {
					assert.ErrorIs(r, err, pgroup.ErrMismatch)
					want = float32(r.Rank() + i)
				}
				assert.Equal(r, repeat(100+i, want), x)
			})
		}
		all.Wait()
		r.ok(r.Barrier(r.ctx)) // all have made the same number of calls
		assert.Equal(r, []float32{1}, average(r, "w", float32(r.Rank())))
	})
}

// TestCallThatGetsNoTurn checks that a call which waits for its turn does not outlive its context,
// and that the other ranks, which would wait for it, get an error.
func TestCallThatGetsNoTurn(t *testing.T) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			// closed when rank 0 is in a call, and when rank 1 has got the error
			busy, reported := make(chan struct{}), make(chan struct{})
			w.run(t, 2, func(r *rank) {
				if r.Rank() == 1 { // it answers the first message of rank 0, and then stops
					r.ok(collective.AllGather(r.ctx, r.comm, make([]uint64, 4), []uint64{0, 1}))
					close(busy)
					defer close(reported)
					assert.ErrorIs(r, r.Barrier(r.ctx), pgroup.ErrAborted)
					return
				}
				first := make(chan error, 1)
				go func() { first <- r.AllReduceGradients(r.ctx, nil) }()
				<-busy
				err := r.Barrier(within(r.T, 20*time.Millisecond))
				fails(r, err, context.DeadlineExceeded, "dataparallel: barrier of group \"world\" on rank 0 of 2: another call was in progress: context deadline exceeded")
				assert.ErrorIs(r, <-first, pgroup.ErrAborted)
				<-reported
			})
		})
	}
}

// TestShutdownWithoutTheOthers checks that a Shutdown without the other ranks closes the Comm
// nevertheless.
func TestShutdownWithoutTheOthers(t *testing.T) {
	over(t, 2, func(r *rank) {
		if r.Rank() == 1 {
			<-r.comm.Group().Context().Done()
			return
		}
		assert.ErrorIs(r, r.Shutdown(within(r.T, 50*time.Millisecond)), context.DeadlineExceeded)
		r.ok(r.Shutdown(r.ctx))
		assert.Error(r, collective.Broadcast(r.ctx, r.comm, 0, []byte{1}))
	})
}

func TestTrace(t *testing.T) {
	seen := make([]testcluster.Events, 3)
	way{host: apart, sinks: seen}.run(t, 3, func(r *rank) {
		s := r.Strategy
		grads := map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 100), "b": tensor.New(tensor.F64)}
		for range 3 {
			r.ok(s.AllReduceGradients(r.ctx, grads))
		}
		r.ok(s.BroadcastTensors(r.ctx, 2, grads))
		r.ok(s.BroadcastTensor(r.ctx, 2, grads["b"]))
		r.ok(s.Barrier(r.ctx))
		assert.Error(r, s.BroadcastTensor(r.ctx, 3, grads["b"]))
		r.ok(s.Shutdown(r.ctx))
	})
	ops := []string{"allreduce_gradients", "allreduce_gradients", "allreduce_gradients", "broadcast_tensors", "broadcast_tensor", "barrier", "broadcast_tensor", "shutdown"}
	bytes := []int64{408, 408, 408, 408, 8, 0, 0, 0}
	for i := range seen {
		es := slices.DeleteFunc(seen[i].All(), func(e trace.Event) bool { return !strings.HasPrefix(e.Op, "dataparallel.") })
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

// TestAllocations checks the memory that a 16 MiB all-reduce of 4 ranks allocates.
func TestAllocations(t *testing.T) {
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
