// Bench measures muster side by side with comparable systems: in one run, in turns, on loopback.
//
//	go run ./bench kv         // a key-value server, compared with redis-server
//	go run ./bench groups     // barrier, all-gather, broadcast and messages
//	                          // compared with a bare Go star, and Open MPI
//	go run ./bench gather     // tensors of 4 processes onto one, compared with a bare Go star,
//	                          // Open MPI, ModelOpt's way and Gloo
//	go run ./bench all-reduce // large slices, compared with Open MPI and gloo
//	.ci/ratios                // muster bench, compared with that of the last release, for CI
//
// Times vary between machines and runs. Compare the ratios within one run, and the CPU time per
// operation. A figure is the median of several rounds. In each round every system has its turn
// under the same conditions.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// command is one measurement.
type command struct {
	name, about string
	run         func(ctx context.Context, args []string, out io.Writer) error
}

var commands = []command{
	{"kv", "get and set over 1 or 50 connections, compared with redis-server", runKV},
	{"groups", "group verbs of 2 to 16 processes, compared with a bare Go star and Open MPI", runGroups},
	{"gather", "tensors of 4 processes onto one, compared with a bare Go star, Open MPI and torch", runGather},
	{"all-reduce", "large slices of 4 ranks, compared with Open MPI and gloo", runAllReduce},
	{"ratios", "muster bench of two builds, in pairs of runs: fails on a loss that repeats", runRatios},
}

// limit bounds a run: all children end with it.
const limit = 30 * time.Minute

func main() {
	if isChild() {
		os.Exit(runChild())
	}
	ends := []os.Signal{syscall.SIGTERM}
	if !signal.Ignored(os.Interrupt) { // as nohup and a shell's & have it: NotifyContext would enable it again
		ends = append(ends, os.Interrupt)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process's exit.
func run(ctx context.Context, args []string, out, errs io.Writer) (status int) {
	if len(args) == 0 {
		usage(errs)
		return 2
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if i < 0 {
		usage(errs)
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	switch err := commands[i].run(ctx, args[1:], out); {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case ctx.Err() != nil: // err is only a consequence of it
		fmt.Fprintf(errs, "bench %s: %v (%v)\n", args[0], ctx.Err(), err)
		return 1
	case err != nil:
		fmt.Fprintf(errs, "bench %s: %v\n", args[0], err)
		return 1
	}
	return 0
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: bench COMMAND [flags]; bench COMMAND -h lists the flags")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.about)
	}
}
