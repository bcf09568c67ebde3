package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// options are the flags.
type options struct {
	steps, batch, hidden int
	rate                 float64
	deterministic        bool
	data, csv, model     string
	elastic              bool
	pause, life          time.Duration
}

// parseFlags parses the flags. If help is requested, it writes it to out and returns flag.ErrHelp.
func parseFlags(args []string, out io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are printed by the caller in one line
	f.Usage = func() {}
	f.IntVar(&o.steps, "steps", 400, "how many batches to learn from")
	f.IntVar(&o.batch, "batch", 64, "how many digits all ranks together learn from in a step")
	f.IntVar(&o.hidden, "hidden", 64, "how many units the hidden layer has")
	f.Float64Var(&o.rate, "lr", 0.05, "how far a step goes down the gradient")
	f.BoolVar(&o.deterministic, "deterministic", false, "the same bits whatever the number of ranks")
	f.StringVar(&o.data, "data", "", "`file` of gzipped CSV, a row for each digit: 64 pixels from 0 to 16, and the label; default: the data that come with the program")
	f.StringVar(&o.csv, "csv", "", "`file` for the loss of each step, with all its bits")
	f.BoolVar(&o.elastic, "elastic", false, "be a worker of muster run --elastic, which may be killed at any time")
	f.DurationVar(&o.pause, "pause", 0, "with -elastic, how long each step takes in addition")
	f.DurationVar(&o.life, "life", 0, "with -elastic, kill this worker (SIGKILL) after half to one and a half times as long; 0: never")
	f.StringVar(&o.model, "model", "", "`file` for the weights, in the safetensors format")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, "train [flags]\n\n")
		f.SetOutput(out)
		f.PrintDefaults()
		return nil, err
	case err != nil:
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, o.check()
}

func (o *options) check() error {
	switch {
	case o.steps < 1:
		return fmt.Errorf("-steps %d: at least 1", o.steps)
	case o.batch < 1 || o.batch > maxBatch:
		return fmt.Errorf("-batch %d: from 1 to %d", o.batch, maxBatch)
	case o.hidden < 1 || o.hidden > 1<<16:
		return fmt.Errorf("-hidden %d: from 1 to %d", o.hidden, 1<<16)
	case !(o.rate > 0 && o.rate < 1e9): // rejects NaN too
		return fmt.Errorf("-lr %v: above 0, and finite", o.rate)
	case !o.elastic && (o.pause != 0 || o.life != 0):
		return errors.New("-pause and -life are for -elastic, which is not given")
	case o.elastic && (o.csv != "" || o.model != ""):
		return errors.New("-elastic writes no -csv and no -model")
	case o.pause < 0 || o.life < 0:
		return errors.New("-pause and -life must not be negative")
	}
	return nil
}

// common returns a text that must be equal on all ranks; otherwise their replicas would diverge
// without an error.
func (o *options) common(data dataset) string {
	h := sha256.New()
	for _, part := range [][]example{data.train, data.heldOut} {
		fmt.Fprintln(h, part)
	}
	return fmt.Sprintf("-steps %d -batch %d -hidden %d -lr %v -deterministic=%t data %.6x", o.steps, o.batch, o.hidden, o.rate, o.deterministic, h.Sum(nil))
}
