package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// tensorSizes are those of a small model: small tensors between large ones.
var tensorSizes = []int{1, 300, 40_000, 3, 0, 5000, 64, 33_001}

// floats returns tensors that differ from rank to rank, and whose sum depends on its order.
func floats(rank int) (ts map[string]*tensor.Tensor, xs map[string][]float32) {
	ts, xs = map[string]*tensor.Tensor{}, map[string][]float32{}
	chance, scales := rand.New(rand.NewPCG(uint64(rank), 3)), []float32{1, 10, 100, 1000, 10_000}
	for i, n := range tensorSizes {
		name, x := fmt.Sprint("layer.", i+5), make([]float32, n)
		for k := range x {
			x[k] = float32(chance.Float64()-0.5) * scales[k%len(scales)]
		}
		ts[name], xs[name] = tensor.From(x), x
	}
	return ts, xs
}

// bits returns all of ts.
func bits(ts map[string]*tensor.Tensor) (all []byte) {
	for _, name := range slices.Sorted(maps.Keys(ts)) {
		all = append(all, ts[name].Data...)
	}
	return all
}

// with returns a Strategy with options over the Comm of r.
func (r *rank) with(o dataparallel.Options) *dataparallel.Strategy {
	return dataparallel.New(r.comm, &o)
}

// sameOnAll checks that all ranks have the same bits.
func (r *rank) sameOnAll(b []byte) {
	all := make([]byte, len(b)*r.Size())
	if r.ok(collective.AllGather(r.ctx, r.comm, all, b)) {
		for i := range r.Size() {
			assert.True(r, slices.Equal(all[i*len(b):][:len(b)], b), "ranks %d and %d differ", i, r.Rank())
		}
	}
}

// TestStartGradients checks that an average that overlaps has the bits of one that does not, whatever
// the order in which gradients are ready on each rank, and with any bucket.
func TestStartGradients(t *testing.T) {
	for _, bucket := range []int{0, 1, 100_000} {
		t.Run(fmt.Sprint("bucket ", bucket), func(t *testing.T) {
			over(t, 4, func(r *rank) {
				s := r.with(dataparallel.Options{Bucket: bucket})
				want, _ := floats(r.Rank())
				want["loss"] = tensor.From([]float64{float64(r.Rank())})
				got := map[string]*tensor.Tensor{}
				for name, x := range want {
					got[name] = x.Clone()
				}
				r.ok(s.AllReduceGradients(r.ctx, want))
				a, err := s.StartGradients(r.ctx, got)
				if !r.ok(err) {
					return
				}
				names := slices.Sorted(maps.Keys(got))
				rand.New(rand.NewPCG(uint64(r.Rank()), 4)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				var all sync.WaitGroup
				for _, part := range [][]string{names[:4], names[4:7], {names[0]}} { // those that remain are ready in Wait
					all.Go(func() {
						for _, name := range part {
							a.Ready(name)
						}
					})
				}
				all.Wait()
				r.ok(a.Wait(r.ctx))
				r.ok(a.Wait(r.ctx)) // it is idempotent
				assert.True(r, slices.Equal(bits(want), bits(got)), "rank %d", r.Rank())
				r.sameOnAll(bits(got))
				r.ok(s.Barrier(r.ctx))
			})
		})
	}
}

func TestStartGradientsThatFail(t *testing.T) {
	over(t, 2, func(r *rank) {
		x := []float32{1, float32(r.Rank())}
		grads := map[string]*tensor.Tensor{"w": tensor.From(x[:1]), "b": tensor.From(x[1:])}
		a, err := r.StartGradients(r.ctx, grads)
		r.ok(err)
		a.Ready("w", "none")
		err = a.Wait(r.ctx)
		fails(r, err, pgroup.ErrInvalid, `ready: there is no tensor "none"`)
		assert.Equal(r, []float32{1, 0.5}, x, "those that exist are averaged")
		a.Ready("w") // too late: without effect

		if r.Rank() == 1 {
			delete(grads, "b")
		}
		_, err = r.StartGradients(r.ctx, grads)
		fails(r, err, pgroup.ErrMismatch, `rank 0 has a tensor "b", rank 1 has none`)

		grads["b"] = tensor.From(x[1:])
		a, err = r.StartGradients(r.ctx, grads)
		if r.Rank() == 0 {
			if err == nil { // the other rank has not failed yet
				a.Ready("w", "b")
				err = a.Wait(r.ctx)
			}
			assert.True(r, errors.Is(err, pgroup.ErrCancelled) || errors.Is(err, context.Canceled), "%v", err)
			return
		}
		r.ok(err)
		ended, cancel := context.WithCancel(r.ctx)
		cancel()
		err = a.Wait(ended)
		assert.ErrorIs(r, err, context.Canceled)
	})
}

// TestStartGradientsBegins checks that the buckets that are ready are averaged while the others are
// computed.
func TestStartGradientsBegins(t *testing.T) {
	over(t, 2, func(r *rank) {
		s := r.with(dataparallel.Options{Bucket: 1})
		x, y := []float32{float32(r.Rank())}, []float32{7}
		a, err := s.StartGradients(r.ctx, map[string]*tensor.Tensor{"layer.10": tensor.From(x), "layer.9": tensor.From(y)})
		r.ok(err)
		a.Ready("layer.10")
		// The Comm serves in order: when this barrier returns, so has the bucket before it.
		r.ok(r.comm.Barrier(r.ctx))
		assert.Equal(r, []float32{0.5}, x)
		r.ok(a.Wait(r.ctx))
	})
}

// TestWire checks the error of 16-bit transport against the limit of its documentation.
func TestWire(t *testing.T) {
	for _, c := range []struct {
		wire tensor.DType
		u    float64
	}{{tensor.BF16, 1. / (1 << 8)}, {tensor.F16, 1. / (1 << 11)}, {tensor.Invalid, 1. / (1 << 23)}} {
		t.Run(fmt.Sprint(c.wire), func(t *testing.T) {
			over(t, 3, func(r *rank) {
				s := r.with(dataparallel.Options{Wire: c.wire})
				grads, xs := floats(r.Rank())
				grads["exact"] = tensor.From([]float64{0.1 * float64(r.Rank())})
				var of [3]map[string][]float32
				for i := range of {
					_, of[i] = floats(i)
				}
				again, _ := floats(r.Rank())
				again["exact"] = tensor.From([]float64{0.1 * float64(r.Rank())})
				r.ok(s.AllReduceGradients(r.ctx, grads))
				for name, x := range xs {
					for i := range x {
						sum, size := 0., 0.
						for k := range of {
							sum, size = sum+float64(of[k][name][i]), size+math.Abs(float64(of[k][name][i]))
						}
						limit := c.u*(size+math.Abs(sum))/3*(1+c.u) + 1e-7
						if math.Abs(sum/3-float64(x[i])) > limit {
							assert.Failf(r, "wrong", "element %d of %s is %v, want %v ± %v", i, name, x[i], sum/3, limit)
							return
						}
					}
				}
				exact, err := tensor.View[float64](grads["exact"])
				r.ok(err)
				assert.InDelta(r, 0.1, exact[0], 1e-15)
				r.sameOnAll(bits(grads))
				a, err := s.StartGradients(r.ctx, again)
				if r.ok(err) {
					r.ok(a.Wait(r.ctx))
					assert.True(r, slices.Equal(bits(grads), bits(again)))
				}
			})
		})
	}
}

func TestOptionsThatDiffer(t *testing.T) {
	over(t, 2, func(r *rank) {
		grads := map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 2)}
		s := r.with(dataparallel.Options{Wire: []tensor.DType{tensor.Invalid, tensor.BF16}[r.Rank()]})
		err := s.AllReduceGradients(r.ctx, grads)
		fails(r, err, pgroup.ErrMismatch, "rank 1 has Options with Wire BF16 and Bucket 0, rank 0 with Wire invalid and Bucket 0")
		err = r.with(dataparallel.Options{Wire: tensor.I8}).AllReduceGradients(r.ctx, grads)
		fails(r, err, pgroup.ErrInvalid, "Options.Wire is I8, and not F16 or BF16")
	})
}

// TestOrderOfNames checks that layers of a backward pass come from the last to the first.
func TestOrderOfNames(t *testing.T) {
	names := []string{"layer.2.w", "layer.10.w", "layer.10.b", "embed", "head", "layer.02.w", "layer.9", "layer", "layer.9.w"}
	slices.SortFunc(names, dataparallel.Descending)
	require.Equal(t, []string{"layer.10.w", "layer.10.b", "layer.9.w", "layer.9", "layer.02.w", "layer.2.w", "layer", "head", "embed"}, names)
	for _, a := range names {
		for _, b := range names {
			require.Equal(t, dataparallel.Descending(a, b), -dataparallel.Descending(b, a))
		}
	}
}

// TestStartGradientsHoldsTheTurn checks that another call waits for Wait.
func TestStartGradientsHoldsTheTurn(t *testing.T) {
	ways[0].run(t, 2, func(r *rank) {
		a, err := r.StartGradients(r.ctx, map[string]*tensor.Tensor{"w": tensor.New(tensor.F32, 2)})
		r.ok(err)
		ended := make(chan error, 1)
		go func() { ended <- r.Barrier(r.ctx) }()
		select {
		case err := <-ended:
			assert.Fail(r, "the barrier has ended", "%v", err)
		case <-time.After(20 * time.Millisecond):
		}
		r.ok(a.Wait(r.ctx))
		r.ok(<-ended)
	})
}
