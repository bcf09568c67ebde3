package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

const seed = 1 // of the initial weights and of the order of examples

// trainer is one rank's replica of the model, and its share of the work.
type trainer struct {
	*options
	comm *collective.Comm
	dp   *dataparallel.Strategy
	data dataset
	net  *network
	grad layers
	sums exactSum // with -deterministic
	sgd  sgd
}

// open connects the ranks and gives all of them the weights of rank 0.
func open(ctx context.Context, g *pgroup.Group, o *options, data dataset) (*trainer, error) {
	comm, err := collective.Open(ctx, g, nil)
	if err != nil {
		return nil, err
	}
	t := newTrainer(o, data)
	t.comm, t.dp = comm, dataparallel.New(comm, nil)
	if t.dp.Rank() == 0 {
		t.net.draw(seed)
	}
	if err := t.dp.BroadcastTensors(ctx, 0, t.net.tensors()); err != nil {
		return nil, errors.Join(err, comm.Close())
	}
	return t, nil
}

func newTrainer(o *options, data dataset) *trainer {
	t := &trainer{options: o, data: data, net: newNetwork(o.hidden), grad: newLayers(o.hidden)}
	t.sgd.velocity = make([]float32, len(t.grad.all))
	t.sums = make(exactSum, len(t.grad.all)+1)
	return t
}

// run takes all steps. After each step it calls report with the loss, which is the same on all ranks.
func (t *trainer) run(ctx context.Context, report func(step int, loss float64) error) error {
	b := batches{n: len(t.data.train), size: t.batch}
	for step := 1; step <= t.steps; step++ {
		loss, err := t.step(ctx, b.of(step-1))
		if err == nil {
			err = report(step, loss)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

// step trains on one batch, of which every rank takes its share. It returns the mean loss of the
// batch before the step.
func (t *trainer) step(ctx context.Context, batch []int) (loss float64, err error) {
	rank, size := t.dp.Rank(), t.dp.Size()
	mine := batch[len(batch)*rank/size : len(batch)*(rank+1)/size]
	if t.deterministic {
		loss, err = t.exact(ctx, mine, len(batch))
	} else {
		loss, err = t.average(ctx, mine, len(batch))
	}
	if err != nil {
		return loss, err
	}
	if math.IsNaN(loss) || math.IsInf(loss, 0) { // on all ranks alike
		return loss, fmt.Errorf("the loss is %v: a smaller -lr may help", loss)
	}
	t.sgd.update(t.net.all, t.grad.all, float32(t.rate))
	return loss, nil
}

// average is the usual form of data parallelism: each rank sums its own gradients, and the ranks
// average their sums, in floating point.
func (t *trainer) average(ctx context.Context, mine []int, n int) (float64, error) {
	clear(t.grad.all)
	loss := []float64{0}
	for _, i := range mine {
		loss[0] += t.net.backward(t.grad, &t.data.train[i])
	}
	// shares may differ by one: the result must be the average over examples, not over ranks
	scale := float32(t.dp.Size()) / float32(n)
	for i := range t.grad.all {
		t.grad.all[i] *= scale
	}
	if err := t.dp.AllReduceGradients(ctx, t.grad.tensors()); err != nil {
		return 0, err
	}
	err := collective.AllReduce(ctx, t.comm, collective.Sum, loss)
	return loss[0] / float64(n), err
}

// exact computes the same mean, with bits that do not depend on the number of ranks.
func (t *trainer) exact(ctx context.Context, mine []int, n int) (float64, error) {
	clear(t.sums)
	for _, i := range mine {
		clear(t.grad.all)
		loss := t.net.backward(t.grad, &t.data.train[i])
		if err := t.sums.add(t.grad.all, loss); err != nil {
			return 0, err
		}
	}
	if err := collective.AllReduce(ctx, t.comm, collective.Sum, t.sums); err != nil {
		return 0, err
	}
	return t.sums.mean(t.grad.all, n), nil
}

// same returns a checksum of the weights. It returns an error if the weights of the ranks differ.
func (t *trainer) same(ctx context.Context, g *pgroup.Group) (string, error) {
	sum := t.checksum()
	return sum, alike(ctx, g, "weights", sum)
}

func (t *trainer) checksum() string {
	return fmt.Sprintf("%x", sha256.Sum256(tensor.From(t.net.all).Data))
}

// alike returns an error on all ranks if their values of what differ.
func alike(ctx context.Context, g *pgroup.Group, what, mine string) error {
	all, err := pgroup.AllGather(ctx, g, mine)
	if err != nil {
		return err
	}
	for rank, v := range all {
		if v != all[0] {
			return fmt.Errorf("ranks have different %s: rank 0 %s, and rank %d %s", what, all[0], rank, v)
		}
	}
	return nil
}

// batches selects the examples of each step. Every epoch contains all examples in another order,
// which is the same on every rank. The examples that do not fill a batch at the end of an epoch are
// omitted.
type batches struct {
	n, size int
	epoch   int   // of order
	order   []int // of the examples; nil: none yet
}

// of returns the batch of a step, from 0. Steps may be taken in any order, by any process.
func (b *batches) of(step int) []int {
	each := b.n / b.size
	if epoch := step / each; b.order == nil || b.epoch != epoch {
		b.epoch, b.order = epoch, rand.New(rand.NewPCG(seed, uint64(epoch)+1)).Perm(b.n)
	}
	return b.order[step%each*b.size:][:b.size]
}

// report prints and records a run on rank 0.
type report struct {
	out   io.Writer
	every int // steps between two lines
	steps int
	curve *curve
}

func (r *report) step(step int, loss float64) error {
	if step%r.every == 0 || step == r.steps {
		fmt.Fprintf(r.out, "step %d of %d: loss %.4f\n", step, r.steps, loss)
	}
	return r.curve.add(step, loss)
}
