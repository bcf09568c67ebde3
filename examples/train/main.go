// Train trains a linear regression on any number of processes.
//
//	muster run -n 4 -- go run ./examples/train
//	muster run -n 4 -- go run ./examples/train -deterministic
//	muster run --elastic 2:4 --max-restarts 99 -- go run ./examples/train -elastic -life 20s -pause 50ms
//
// Every process has the whole model, and learns from its share of each batch; the gradients are
// averaged over all processes. This file is how the processes meet and part, and train.go is how they
// learn together. README.md shows the output.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/pgroup"
)

func main() {
	t := &trainer{}
	flag.UintVar(&t.steps, "steps", 400, "how many batches to learn from, of 64 examples each")
	flag.BoolVar(&t.deterministic, "deterministic", false, "the same bits whatever the number of processes")
	flag.DurationVar(&t.pause, "pause", 0, "how long each step takes in addition")
	elastic := flag.Bool("elastic", false, "be a worker of muster run --elastic, which may be killed at any time")
	life := flag.Duration("life", 0, "kill this process (SIGKILL) after half to one and a half times as long; 0: never")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "train: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if *life > 0 {
		time.AfterFunc(*life/2+rand.N(*life), func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
	}
	run := runRank
	if *elastic {
		run = runWorker
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, t); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

// runRank runs one rank of a group, whose ranks are the same from its beginning to its end.
func runRank(ctx context.Context, t *trainer) error {
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return fmt.Errorf("%w; start it with: muster run -n 4 -- go run ./examples/train", err)
	}
	g, err := pgroup.Create(ctx, cfg) // returns when all ranks have joined
	if err != nil {
		return err
	}
	defer g.Close()
	if err := train(ctx, g, t); err != nil {
		g.Abort(err) // so that the other ranks do not wait for this rank, and get its error
		return fmt.Errorf("rank %d: %w", g.Rank(), err)
	}
	return g.Shutdown(ctx) // waits until no rank needs another one
}

func train(ctx context.Context, g *pgroup.Group, t *trainer) error {
	// Ranks that were started with different flags would diverge without an error.
	flags, err := pgroup.AllGather(ctx, g, t.settings())
	if err != nil {
		return err
	}
	for rank, f := range flags {
		if f != flags[0] {
			return fmt.Errorf("ranks have different flags: rank 0 %s, and rank %d %s", flags[0], rank, f)
		}
	}
	comm, err := collective.Open(ctx, g, nil) // connects the ranks directly
	if err != nil {
		return err
	}
	defer comm.Close()
	s := dataparallel.New(comm, nil)
	if g.Rank() == 0 {
		t.initialize()
	}
	if err := s.BroadcastTensors(ctx, 0, t.state()); err != nil {
		return err
	}
	for n := range t.steps {
		if err := t.step(ctx, s, comm, n); err != nil {
			return fmt.Errorf("step %d: %w", n+1, err)
		}
	}
	fmt.Println(t.checksum())
	return s.Shutdown(ctx)
}

// runWorker runs one worker of an elastic job, in which workers may fail, leave and join. A worker that
// joins receives the state of the model from another one.
func runWorker(ctx context.Context, t *trainer) error {
	node, err := dataparallel.WorkerFromEnv()
	if err != nil {
		return err
	}
	defer node.Close()
	node.Worker.Settings = t.settings() // the same on all workers
	t.initialize()
	loop := &dataparallel.Training{Goal: int64(t.steps), Tensors: t.state()}
	loop.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
		return t.step(ctx, s, node.Comm(), uint(loop.Completed))
	}
	err = node.Train(ctx, loop)
	if errors.Is(err, dataparallel.ErrFinished) { // this worker was a standby, or was cut off
		fmt.Println("the others have finished")
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Println(t.checksum())
	return nil
}
