package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/tensor"
)

const (
	batch    = 64 // examples that all ranks together learn from in a step
	features = 60
	rate     = 0.05
	momentum = 0.9
	unit     = 1.0 / (1 << 40) // of the integers that -deterministic adds
	maxTerm  = 1 << 10         // the sum of a batch of them stays below 2^63 units
)

type vector [features]float32

// trainer is one rank's replica of the model, a linear regression, and its part in the training.
type trainer struct {
	weights, velocity vector
	steps             uint
	deterministic     bool
	pause             time.Duration
}

// settings returns the flags that must be the same on all ranks.
func (t *trainer) settings() string {
	return fmt.Sprintf("-steps %d -deterministic=%t", t.steps, t.deterministic)
}

// initialize draws the weights to begin with.
func (t *trainer) initialize() { t.weights = draw(0, 1)[0].x }

// state returns all that a step changes, in the same memory: the weights, and the state of the optimizer.
func (t *trainer) state() map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"weights": tensor.From(t.weights[:]), "velocity": tensor.From(t.velocity[:])}
}

// step takes step n, from 0: each rank computes the gradients of its share of the batch, and all ranks make
// the same update with the mean of all gradients. The batch depends on n alone, and the state changes only
// after the last exchange with other ranks, so a step that has failed can be taken again, by any ranks.
func (t *trainer) step(ctx context.Context, s *dataparallel.Strategy, comm *collective.Comm, n uint) error {
	time.Sleep(t.pause)
	all := draw(uint64(n)+1, batch)
	mine := all[batch*s.Rank()/s.Size() : batch*(s.Rank()+1)/s.Size()]
	mean, err := t.mean(ctx, s, comm, mine)
	if err != nil {
		return err
	}
	t.update(mean)
	if done := n + 1; s.Rank() == 0 && (done%50 == 0 || done == t.steps) {
		fmt.Printf("step %d of %d: held-out error %.4f\n", done, t.steps, t.heldOutError())
	}
	return nil
}

// mean returns the mean gradient of the examples of all ranks, in the usual form of data parallelism: each
// rank sums its own gradients, and the ranks average their sums, in floating point.
func (t *trainer) mean(ctx context.Context, s *dataparallel.Strategy, comm *collective.Comm, mine []example) (mean vector, err error) {
	if t.deterministic {
		return t.exactMean(ctx, comm, mine)
	}
	// Shares may differ by one: the result must be the average over examples, not over ranks.
	scale := float32(s.Size()) / batch
	for _, e := range mine {
		for k, v := range t.gradient(e) {
			mean[k] += scale * v
		}
	}
	err = s.AllReduceGradients(ctx, map[string]*tensor.Tensor{"weights": tensor.From(mean[:])})
	return mean, err
}

// exactMean computes the same mean, with bits that do not depend on the number of ranks. Each number of each
// gradient is rounded once, to a multiple of unit, before it is added. The sum itself is not rounded, so
// neither order nor grouping matters: integer addition is associative, and floating-point addition is not.
func (t *trainer) exactMean(ctx context.Context, comm *collective.Comm, mine []example) (mean vector, err error) {
	var sum [features]int64
	for _, e := range mine {
		for k, v := range t.gradient(e) {
			if !(math.Abs(float64(v)) <= maxTerm) { // false for NaN too
				return mean, fmt.Errorf("gradient: %v is beyond the ±%d that -deterministic can add", v, maxTerm)
			}
			sum[k] += int64(math.RoundToEven(float64(v) / unit)) // the division is exact: unit is a power of two
		}
	}
	err = collective.AllReduce(ctx, comm, collective.Sum, sum[:])
	for k, v := range sum {
		mean[k] = float32(float64(v) * unit / batch)
	}
	return mean, err
}

// update takes one step down the gradient, with momentum. Each product is rounded separately. Otherwise Go may
// fuse it with the sum on some processors and not on others, and replicas on both would diverge.
func (t *trainer) update(gradient vector) {
	for k, v := range gradient {
		t.velocity[k] = float32(momentum*t.velocity[k]) + v
		t.weights[k] -= float32(rate * t.velocity[k])
	}
}

// checksum returns a line that is the same for weights of the same bits.
func (t *trainer) checksum() string {
	return fmt.Sprintf("weights: sha256 %x", sha256.Sum256(tensor.From(t.weights[:]).Data))
}

// example is a point x, and a value y that the model learns to predict from x.
type example struct {
	x vector
	y float32
}

// draw returns n examples: the same on every rank, and others for each seed.
func draw(seed uint64, n int) []example {
	random := rand.New(rand.NewPCG(seed, 0))
	examples := make([]example, n)
	for i := range examples {
		e := &examples[i]
		e.y = random.Float32() - 0.5 // noise, whose mean square is 1/12
		for k := range e.x {
			e.x[k] = 2*random.Float32() - 1
			e.y += float32(k%3) * e.x[k] // the weights that the model must find are 0, 1, 2, 0, 1, 2, …
		}
	}
	return examples
}

// residual returns by how much the model's prediction of y is too high.
func (t *trainer) residual(e example) float32 {
	r := -e.y
	for k, x := range e.x {
		r += float32(t.weights[k] * x) // rounded, as in update
	}
	return r
}

// gradient returns the gradient of the loss of an example, which is half the square of its residual.
func (t *trainer) gradient(e example) (gradient vector) {
	r := t.residual(e)
	for k, x := range e.x {
		gradient[k] = r * x
	}
	return gradient
}

// heldOutError returns the mean square of the residuals of 1000 examples that no step learns from.
func (t *trainer) heldOutError() (mean float32) {
	for _, e := range draw(math.MaxUint64, 1000) {
		mean += t.residual(e) * t.residual(e) / 1000
	}
	return mean
}
