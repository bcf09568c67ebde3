// Train trains a model that reads handwritten digits, on any number of processes.
//
//	muster run -n 4 -- go run ./examples/train
//	muster run -n 4 -- go run ./examples/train -deterministic -csv four.csv
//	muster run --elastic 2:4 --max-restarts 99 -- go run ./examples/train -elastic -life 20s -pause 50ms
//
// Every rank has the whole model, and learns from its share of each batch; the gradients are
// averaged over all ranks. README.md shows the output and the plots.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor/safetensors"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code of the process: 2 for wrong usage, 1 for a failure.
func run(args []string, out, errs io.Writer) int {
	o, err := parseFlags(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(errs, "train: %v; -h lists the flags\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
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

func (o *options) train(ctx context.Context, g *pgroup.Group, out io.Writer) (err error) {
	data, err := load(o.data)
	if err != nil {
		return err
	}
	if o.batch > len(data.train) {
		return fmt.Errorf("-batch %d is more than the %d examples that there are to learn from", o.batch, len(data.train))
	}
	if err := alike(ctx, g, "flags or data", o.common(data)); err != nil {
		return err
	}
	losses, model := o.csv, o.model
	if g.Rank() != 0 {
		losses, model = "", ""
	}
	mine, err := newCurve(losses) // before the training, so that its error comes then
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mine.close()) }()
	t, err := open(ctx, g, o, data)
	if err != nil {
		return err
	}
	defer func() { _ = t.comm.Close() }() // does nothing after Shutdown
	fmt.Fprintf(out, "%d ranks; %d digits to learn from, %d held out; %d weights\n", g.Size(), len(data.train), len(data.heldOut), len(t.net.all))
	r := &report{out: out, every: max(1, min(o.steps/10, 500)), steps: o.steps, curve: mine}
	if err := t.run(ctx, r.step); err != nil {
		return err
	}
	sum, err := t.same(ctx, g)
	if err != nil {
		return err
	}
	right, of := t.net.right(data.heldOut), len(data.heldOut)
	fmt.Fprintf(out, "held out: %d of %d right, %.1f %%\nweights: sha256 %s, on every rank\n", right, of, 100*float64(right)/float64(of), sum)
	if model != "" {
		if err := safetensors.WriteFile(model, t.net.tensors(), nil); err != nil {
			return err
		}
	}
	return t.dp.Shutdown(ctx)
}
