package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

const (
	seed  = 1   // of the initial weights and of the order of examples
	batch = 64  // examples that all ranks together learn from in a step
	rate  = 0.2 // how far a step goes down the gradient
)

// trainer is one rank's replica of the model, and its share of the work.
type trainer struct {
	*options
	comm *collective.Comm
	dp   *dataparallel.Strategy
	data dataset
	net  model
	grad model
	sums exactSum // with -deterministic
	sgd  sgd
}

// newTrainer returns a trainer that is connected to no other rank.
func newTrainer(o *options) (*trainer, error) {
	data, err := load()
	if err != nil {
		return nil, err
	}
	t := &trainer{options: o, data: data, net: newModel(), grad: newModel()}
	t.sgd.velocity = make([]float32, len(t.grad.all))
	t.sums = make(exactSum, len(t.grad.all)+1)
	return t, nil
}

// open connects the ranks and gives all of them the weights of rank 0.
func (t *trainer) open(ctx context.Context, g *pgroup.Group) (err error) {
	if t.comm, err = collective.Open(ctx, g, nil); err != nil {
		return err
	}
	t.dp = dataparallel.New(t.comm, nil)
	if t.dp.Rank() == 0 {
		t.net.draw(seed)
	}
	if err := t.dp.BroadcastTensors(ctx, 0, t.net.tensors()); err != nil {
		return errors.Join(err, t.comm.Close())
	}
	return nil
}

// run takes all steps. It writes the loss of some, which is the same on all ranks.
func (t *trainer) run(ctx context.Context, out io.Writer) error {
	every := max(1, min(t.steps/10, 500))
	for step := 1; step <= t.steps; step++ {
		loss, err := t.step(ctx, examples(step-1, len(t.data.train)))
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		if step%every == 0 || step == t.steps {
			fmt.Fprintf(out, "step %d of %d: loss %.4f\n", step, t.steps, loss)
		}
	}
	return nil
}

// evaluation describes how the model does on the examples that it has not seen.
func (t *trainer) evaluation() string {
	right, of := t.net.right(t.data.heldOut), len(t.data.heldOut)
	return fmt.Sprintf("held out: %d of %d right, %.1f %%", right, of, 100*float64(right)/float64(of))
}

// step trains on a batch of examples, of which every rank takes its share. It returns the mean loss of the
// batch before the step.
func (t *trainer) step(ctx context.Context, of []int) (loss float64, err error) {
	rank, size := t.dp.Rank(), t.dp.Size()
	mine := of[len(of)*rank/size : len(of)*(rank+1)/size]
	if t.deterministic {
		loss, err = t.exact(ctx, mine)
	} else {
		loss, err = t.average(ctx, mine)
	}
	if err != nil {
		return loss, err
	}
	t.sgd.update(t.net.all, t.grad.all, rate)
	return loss, nil
}

// average is the usual form of data parallelism: each rank sums its own gradients, and the ranks
// average their sums, in floating point.
func (t *trainer) average(ctx context.Context, mine []int) (float64, error) {
	clear(t.grad.all)
	loss := []float64{0}
	for _, i := range mine {
		loss[0] += t.net.backward(t.grad, &t.data.train[i])
	}
	// shares may differ by one: the result must be the average over examples, not over ranks
	scale := float32(t.dp.Size()) / batch
	for i := range t.grad.all {
		t.grad.all[i] *= scale
	}
	if err := t.dp.AllReduceGradients(ctx, t.grad.tensors()); err != nil {
		return 0, err
	}
	err := collective.AllReduce(ctx, t.comm, collective.Sum, loss)
	return loss[0] / batch, err
}

// exact computes the same mean, with bits that do not depend on the number of ranks.
func (t *trainer) exact(ctx context.Context, mine []int) (float64, error) {
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
	return t.sums.mean(t.grad.all, batch), nil
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

// examples selects the examples of a step, from 0, out of n. Every epoch contains all examples in
// another order, which is the same on every rank. The examples that do not fill a batch at the end
// of an epoch are omitted. Steps may be taken in any order, by any process.
func examples(step, n int) []int {
	each := n / batch
	order := rand.New(rand.NewPCG(seed, uint64(step/each)+1)).Perm(n)
	return order[step%each*batch:][:batch]
}
