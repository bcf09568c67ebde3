package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// peers are the flags of bench gather and bench all-reduce: ranks, and other libraries.
type peers struct {
	turns
	size   int
	ways   matcher
	mpi    bool
	python string

	stops []func()
}

func (p *peers) flags(f *flag.FlagSet, rounds int, slice time.Duration) {
	f.IntVar(&p.size, "n", 4, "ranks, 2 to 64")
	f.Var(&p.ways, "ways", "measure only rows that this regular expression matches")
	f.BoolVar(&p.mpi, "mpi", true, "measure Open MPI too, if it is there")
	f.StringVar(&p.python, "python", "python3", "measure torch too, if this interpreter has it; empty: do not")
	p.turns.flags(f, rounds, slice)
}

func (p *peers) check() error {
	if p.size < 2 || p.size > 64 || p.rounds < 1 {
		return errors.New("-n: a number from 2 to 64, and -rounds: one at least")
	}
	return nil
}

// invite registers a team, unless err is set.
func (p *peers) invite(t *team, err error) (*team, error) {
	if err == nil && t != nil {
		p.pids = append(p.pids, t.pids()...)
		p.stops = append(p.stops, t.stop)
	}
	return t, err
}

// torch starts torch's ranks. It returns nil if torch is missing.
func (p *peers) torch(ctx context.Context, rep *report) (*team, error) {
	return p.invite(spawnTorch(ctx, p.python, p.size, rep))
}

// openMPI builds the program of Open MPI. It returns nil if that is missing.
func (p *peers) openMPI(ctx context.Context, rep *report) (*mpiProgram, error) {
	if !p.mpi {
		return nil, nil
	}
	program, err := buildMPI(ctx)
	switch {
	case errors.Is(err, errNoMPI):
		rep.note("NO OPEN MPI: %v", err)
		return nil, nil
	case err == nil:
		p.stops = append(p.stops, program.remove)
	}
	return program, err
}

func (p *peers) stop() {
	for _, f := range p.stops {
		f()
	}
}

// run plays, and writes a report.
func (p *peers) run(ctx context.Context, rep *report, out io.Writer) error {
	if len(p.events) == 0 {
		return fmt.Errorf("-ways: %q matches none", p.ways.String())
	}
	return p.turns.run(ctx, rep, out)
}

// matcher is a regular expression flag; its zero value matches all.
type matcher struct{ *regexp.Regexp }

func (m *matcher) Set(s string) (err error) {
	m.Regexp, err = regexp.Compile(s)
	return err
}

func (m *matcher) String() string {
	if m.Regexp == nil {
		return ""
	}
	return m.Regexp.String()
}

func (m *matcher) is(s string) bool { return m.Regexp == nil || m.MatchString(s) }

// parseNumbers parses a flag that lists numbers.
func parseNumbers(name, text string, least, most int) (ns []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("%s: %q is no number from %d to %d", name, part, least, most)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

func bytesText(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%d MiB", n/mib)
	case n < kib:
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%d KiB", n/kib)
}

type gatherOptions struct {
	peers
	bytes, dir string
}

func runGather(ctx context.Context, args []string, out io.Writer) (err error) {
	var o gatherOptions
	f := flag.NewFlagSet("gather", flag.ContinueOnError)
	f.StringVar(&o.bytes, "kib", "4,1024,65536", "sizes of a rank's tensor, in KiB")
	f.StringVar(&o.dir, "dir", os.TempDir(), "folder for files: on a disk")
	o.flags(f, 9, 150*time.Millisecond)
	if err := f.Parse(args); err != nil {
		return err
	}
	sizes, err := parseNumbers("-kib", o.bytes, 1, 1<<20)
	if err := errors.Join(err, o.check()); err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp(o.dir, "muster-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	rep := newReport("gather", p50Column, "p90 µs", "slowest rank", "CPU µs", "÷ bare", othersColumn)
	rep.note("%d processes, of each so much; time on the rank that receives, behind a barrier; CPU of all ranks, with the barrier", o.size)
	rep.note("bare: all that give copy at once, then a bare barrier; see docs/explanation/benchmarks.md")
	defer o.stop()
	if err := o.add(ctx, rep, sizes); err != nil {
		return err
	}
	return o.run(ctx, rep, out)
}

// add starts all parties, and adds their events.
func (o *gatherOptions) add(ctx context.Context, rep *report, sizes []int) error {
	ours, err := o.invite(startRanks(ctx, o.size, o.dir))
	if err != nil {
		return err
	}
	mpi, err := o.openMPI(ctx, rep)
	if err != nil {
		return err
	}
	torch, err := o.torch(ctx, rep)
	if err != nil {
		return err
	}
	for _, size := range sizes {
		n := size * kib
		bases := map[string]ratio{"÷ bare": {p50Column, wayKey(bareShare, n)}}
		for _, w := range gatherWays {
			if w.sizes == nil || w.sizes(n) {
				o.event(ours, w.name, n, bytesText(n), bases)
			}
		}
		if mpi != nil {
			o.event(&mpiParty{mpi, o.size, overMemory, false}, "gather"+atWhom+byMPI, n, bytesText(n), bases)
			o.event(&mpiParty{mpi, o.size, overTCP, false}, "gather"+atWhom+byMPITCP, n, bytesText(n), bases)
		}
		if torch != nil {
			o.event(torch, "gather"+atWhom+"ModelOpt's method", n, bytesText(n), bases)
			o.event(torch, "gather"+atWhom+byGloo, n, bytesText(n), bases)
		}
	}
	return nil
}

// event adds a way, if the flags select it.
func (o *gatherOptions) event(who party, way string, bytes int, size string, bases map[string]ratio) {
	if o.ways.is(way) {
		e := partyEvent(who, way, bytes, true, size, strings.TrimPrefix(way, "gather"+atWhom))
		e.bases = bases
		o.events = append(o.events, e)
	}
}
