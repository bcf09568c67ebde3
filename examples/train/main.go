// Train trains a model that reads handwritten digits, on any number of processes.
//
//	muster run -n 4 -- go run ./examples/train
//	muster run -n 4 -- go run ./examples/train -deterministic
//	muster run --elastic 2:4 --max-restarts 99 -- go run ./examples/train -elastic -life 20s -pause 50ms
//
// Every rank has the whole model, and learns from its share of each batch; the gradients are
// averaged over all ranks. README.md shows the output.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/muster-pg/muster/pgroup"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code of the process: 2 for wrong usage, 1 for a failure.
func run(args []string, out, errs io.Writer) int {
	o, err := parseFlags(args)
	if err != nil {
		fmt.Fprintln(errs, "train:", err)
		return 2
	}
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as nohup and a shell's & have it: NotifyContext would enable it again
		ends = append(ends, os.Interrupt)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	run := o.run
	if o.elastic {
		run = o.runElastic
	}
	if err := run(ctx, out); err != nil {
		fmt.Fprintln(errs, "train:", err)
		return 1
	}
	return 0
}

// run runs one rank.
func (o *options) run(ctx context.Context, out io.Writer) error {
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return fmt.Errorf("%w; start it with: muster run -n 4 -- go run ./examples/train", err)
	}
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	if g.Rank() != 0 {
		out = io.Discard
	}
	if err := o.train(ctx, g, out); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err) // adds the signal
		}
		g.Abort(err) // so that the other ranks do not wait for this rank, and get its error
		return fmt.Errorf("rank %d: %w", g.Rank(), err)
	}
	return g.Shutdown(ctx)
}

func (o *options) train(ctx context.Context, g *pgroup.Group, out io.Writer) error {
	t, err := newTrainer(o)
	if err != nil {
		return err
	}
	if err := alike(ctx, g, "flags or data", o.common()); err != nil {
		return err
	}
	if err := t.open(ctx, g); err != nil {
		return err
	}
	defer func() { _ = t.comm.Close() }() // does nothing after Shutdown
	fmt.Fprintf(out, "%d ranks; %d digits to learn from, %d held out; %d weights\n", g.Size(), len(t.data.train), len(t.data.heldOut), len(t.net.all))
	if err := t.run(ctx, out); err != nil {
		return err
	}
	if err := alike(ctx, g, "weights", t.checksum()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\nweights: sha256 %s, on every rank\n", t.evaluation(), t.checksum())
	return t.dp.Shutdown(ctx)
}
