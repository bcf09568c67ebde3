package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type gatherOptions struct {
	size, rounds, tensors int
	slice                 time.Duration
	mpi, asJSON           bool
	bytes                 string
	ways                  matcher
	python, dir, profile  string
}

func runGather(ctx context.Context, args []string, out io.Writer) (err error) {
	var o gatherOptions
	f := flag.NewFlagSet("gather", flag.ContinueOnError)
	f.IntVar(&o.size, "n", 4, "processes, 2 to 64")
	f.StringVar(&o.bytes, "kib", "4,1024,65536", "sizes of a rank's tensor, in KiB")
	f.IntVar(&o.tensors, "tensors", 1000, "tensors of a map")
	f.IntVar(&o.rounds, "rounds", 9, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 150*time.Millisecond, "length of a turn")
	f.Var(&o.ways, "ways", "measure only ways that this regular expression matches")
	f.BoolVar(&o.mpi, "mpi", true, "measure Open MPI too, if it is there")
	f.StringVar(&o.python, "python", "python3", "measure torch too, if this interpreter has it; empty: do not")
	f.StringVar(&o.dir, "dir", os.TempDir(), "folder for files: on a disk")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of ranks 0 and 1")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	sizes, err := o.parse()
	if err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp(o.dir, "muster-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	rep := newReport("gather", "p50 µs", "p90 µs", "slowest rank", "CPU µs", "÷ memcpy", "÷ at once", "÷ bare", "others %")
	rep.note("%d processes, of each so much; time on the rank that receives, behind a barrier; CPU of all ranks, with the barrier", o.size)
	rep.note("medians of the calmer half of %d rounds of %v; memcpy: one rank's bytes, alone; at once: by all that give; bare: see docs/explanation/benchmarks.md", o.rounds, o.slice)
	g := &games{slice: o.slice, rounds: o.rounds}
	stop, err := o.invite(ctx, g, rep, sizes)
	defer stop()
	if err != nil {
		return err
	}
	if err := g.play(ctx); err != nil {
		return err
	}
	g.addRows(rep)
	return rep.write(out, o.asJSON)
}

func (o *gatherOptions) parse() (sizes []int, err error) {
	if o.size < 2 || o.size > 64 {
		return nil, fmt.Errorf("-n: %d is no number from 2 to 64", o.size)
	}
	if o.tensors < 1 || o.rounds < 1 {
		return nil, errors.New("-tensors and -rounds: one at least")
	}
	for part := range strings.SplitSeq(o.bytes, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 || n > 1<<20 {
			return nil, fmt.Errorf("-kib: %q is no number from 1 to %d", part, 1<<20)
		}
		sizes = append(sizes, n*kib)
	}
	return sizes, nil
}

// invite starts all parties, and adds their events to g. stop ends them; it can be called after an
// error too.
func (o *gatherOptions) invite(ctx context.Context, g *games, rep *report, sizes []int) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	ours, err := o.team(ctx)
	if err != nil {
		return stop, err
	}
	stops = append(stops, ours.stop)
	mpi, gone, err := o.inviteMPI(ctx, rep)
	stops = append(stops, gone)
	if err != nil {
		return stop, err
	}
	torch, err := spawnTorch(ctx, o.python, gatherScript, o.size, rep)
	if err != nil {
		return stop, err
	}
	if torch != nil {
		stops = append(stops, torch.stop)
	}
	for _, n := range sizes {
		o.ours(g, ours, n)
		for _, x := range mpi {
			o.add(g, x, x.name, n, bytesText(n), gatherBases)
		}
		if torch != nil {
			o.add(g, torch, "ModelOpt's way", n, bytesText(n), gatherBases)
			o.add(g, torch, "gloo gather", n, bytesText(n), gatherBases)
		}
	}
	o.special(g, ours, torch, sizes)
	if len(g.events) == 0 {
		return stop, fmt.Errorf("-ways: %q matches none", o.ways.String())
	}
	return stop, nil
}

var (
	gatherBases = map[string]string{"÷ memcpy": oneCopy, "÷ at once": allCopies, "÷ bare": bareShare}
	mapBases    = map[string]string{}
)

// ours adds the ways that this program implements.
func (o *gatherOptions) ours(g *games, who party, bytes int) {
	for _, w := range gatherWays {
		if w.sizes == nil || w.sizes(bytes) {
			o.add(g, who, w.name, bytes, bytesText(bytes), gatherBases)
		}
	}
}

// special adds gathers of maps, and files of the largest size.
func (o *gatherOptions) special(g *games, ours party, torch *team, sizes []int) {
	many := fmt.Sprintf("%d tensors", o.tensors)
	for _, way := range mapWays {
		o.add(g, ours, way, o.tensors, many, mapBases)
	}
	if torch != nil {
		o.add(g, torch, "map, ModelOpt's way", o.tensors, many, mapBases)
	}
	n := slices.Max(sizes)
	for i, way := range fileWays {
		bases := mapBases
		if i%2 == 1 { // the one before is the plain write
			bases = map[string]string{"÷ bare": fileWays[i-1]}
		}
		o.add(g, ours, way, n, bytesText(n), bases)
	}
}

// add adds a way, if the flags select it.
func (o *gatherOptions) add(g *games, who party, way string, bytes int, size string, bases map[string]string) {
	if o.ways.is(way) {
		g.events = append(g.events, &event{who: who, way: way, bytes: bytes, name: []string{size, way}, bases: bases})
	}
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

func bytesText(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%d MiB", n/mib)
	case n < kib:
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%d KiB", n/kib)
}

// team starts the ranks.
func (o *gatherOptions) team(ctx context.Context) (*team, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &team{cancel: cancel}
	addrs := ""
	for rank := range o.size {
		args := []string{strconv.Itoa(rank), strconv.Itoa(o.size), o.dir, o.profile}
		p, err := spawn(ctx, "gatherer", append(args, strings.Fields(addrs)...)...)
		if err == nil {
			t.ranks = append(t.ranks, p)
			if rank == 0 {
				addrs, err = p.line()
			}
		}
		if err != nil {
			cancel()
			return nil, err
		}
	}
	return t, nil
}

// inviteMPI returns no entrants if Open MPI is missing.
func (o *gatherOptions) inviteMPI(ctx context.Context, rep *report) (who []*mpiGather, gone func(), err error) {
	gone = func() {}
	if !o.mpi {
		return nil, gone, nil
	}
	program, err := buildMPI(ctx)
	if errors.Is(err, errNoMPI) {
		rep.note("NO OPEN MPI: %v", err)
		return nil, gone, nil
	}
	if err != nil {
		return nil, gone, err
	}
	return []*mpiGather{
		{program, o.size, "Open MPI, shared memory", []string{"--mca", "btl", "vader,self"}},
		{program, o.size, "Open MPI, TCP", overTCP},
	}, program.remove, nil
}
