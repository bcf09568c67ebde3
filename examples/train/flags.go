package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"time"
)

// options are the flags.
type options struct {
	steps         int
	deterministic bool
	elastic       bool
	pause, life   time.Duration
}

// parseFlags parses the flags. The process exits for -h and for flags that there are not.
func parseFlags(args []string) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("train", flag.ExitOnError)
	f.IntVar(&o.steps, "steps", 400, "how many batches to learn from, of 64 digits each")
	f.BoolVar(&o.deterministic, "deterministic", false, "the same bits whatever the number of ranks")
	f.BoolVar(&o.elastic, "elastic", false, "be a worker of muster run --elastic, which may be killed at any time")
	f.DurationVar(&o.pause, "pause", 0, "with -elastic, how long each step takes in addition")
	f.DurationVar(&o.life, "life", 0, "with -elastic, kill this worker (SIGKILL) after half to one and a half times as long; 0: never")
	_ = f.Parse(args)
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, o.check()
}

func (o *options) check() error {
	switch {
	case o.steps < 1:
		return fmt.Errorf("-steps %d: at least 1", o.steps)
	case !o.elastic && (o.pause != 0 || o.life != 0):
		return errors.New("-pause and -life are for -elastic, which is not given")
	}
	return nil
}

// common returns a text that must be equal on all ranks; otherwise their replicas would diverge
// without an error.
func (o *options) common() string {
	return fmt.Sprintf("-steps %d -deterministic=%t data %.6x", o.steps, o.deterministic, sha256.Sum256(digits))
}
