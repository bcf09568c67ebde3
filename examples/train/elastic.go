package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/tensor"
)

// runElastic runs one worker of an elastic job. A worker that starts again receives the weights from the
// others.
func (o *options) runElastic(ctx context.Context, out io.Writer) error {
	t, err := newTrainer(o)
	if err != nil {
		return err
	}
	node, err := dataparallel.WorkerFromEnv()
	if err != nil {
		return err
	}
	defer node.Close()
	t.net.draw(seed)
	var death *time.Timer
	if o.life > 0 {
		death = time.AfterFunc(o.life/2+rand.N(o.life), killSelf)
	}
	err = node.Train(ctx, t.training(node))
	if death != nil {
		death.Stop()
	}
	if errors.Is(err, dataparallel.ErrFinished) { // a standby
		fmt.Fprintln(out, "the others have finished")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s; weights: sha256 %s\n", node.Worker.ID, t.evaluation(), t.checksum())
	return nil
}

// training returns the loop of t. All that a step changes is the weights and their velocity.
func (t *trainer) training(node *dataparallel.WorkerNode) *dataparallel.Training {
	state := map[string]*tensor.Tensor{"velocity": tensor.From(t.sgd.velocity)}
	maps.Copy(state, t.net.tensors())
	loop := &dataparallel.Training{Goal: int64(t.steps), Tensors: state}
	loop.Step = func(ctx context.Context, s *dataparallel.Strategy) (err error) {
		select {
		case <-time.After(t.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		t.comm, t.dp = node.Comm(), s
		_, err = t.step(ctx, examples(int(loop.Completed), len(t.data.train)))
		return err
	}
	return loop
}

func killSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
