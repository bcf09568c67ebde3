package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

type collectiveOptions struct {
	size, rounds                      int
	slice                             time.Duration
	bytes                             string
	ways                              matcher
	mpi, asJSON                       bool
	python, zerfoo, profile, verbSize string
}

func runCollective(ctx context.Context, args []string, out io.Writer) error {
	var o collectiveOptions
	f := flag.NewFlagSet("collective", flag.ContinueOnError)
	f.IntVar(&o.size, "n", 4, "ranks, 2 to 64")
	f.StringVar(&o.bytes, "bytes", "4,4096,65536,1048576,16777216", "sizes of an all-reduce")
	f.StringVar(&o.verbSize, "verbs", "1048576", "sizes of the other verbs, of the larger slice; empty: none")
	f.IntVar(&o.rounds, "rounds", 7, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 100*time.Millisecond, "length of a turn")
	f.Var(&o.ways, "ways", "measure only rows (VERB@WHO) that this regular expression matches")
	f.BoolVar(&o.mpi, "mpi", true, "measure Open MPI too, if it is there")
	f.StringVar(&o.python, "python", "python3", "measure gloo too, if this interpreter has torch; empty: do not")
	f.StringVar(&o.zerfoo, "zerfoo", "", "measure Zerfoo too: a program that is a rank of it (docs/explanation/benchmarks.md)")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of rank 0")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	sizes, err := o.parse()
	if err != nil {
		return err
	}
	rep := newReport("collective", "p50 µs", "p90 µs", "mean µs", "CPU µs", "alloc B", "÷ MPI shm", "÷ MPI TCP", "÷ gloo", "÷ Zerfoo", "÷ bare", "÷ copied", "others %")
	rep.note("%d ranks, float32; time of the slowest rank, behind a barrier of the same library; chained: of calls that follow each other, on rank 0", o.size)
	rep.note("medians of the calmer half of %d rounds of %v; CPU of all ranks with the barrier; alloc: what one rank allocates per verb, of which the barrier is one; bare: see docs/explanation/benchmarks.md", o.rounds, o.slice)
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
	for _, t := range collectiveTargets {
		t.note(g, rep)
	}
	noteAlloc(g, rep)
	return rep.write(out, o.asJSON)
}

// course is one thing to measure: a verb and a size.
type course struct {
	verb  string
	bytes int
}

func (o *collectiveOptions) parse() (all []course, err error) {
	if o.size < 2 || o.size > 64 {
		return nil, fmt.Errorf("-n: %d is no number from 2 to 64", o.size)
	}
	if o.rounds < 1 {
		return nil, errors.New("-rounds: one at least")
	}
	reduced, err := parseBytes("-bytes", o.bytes)
	if err != nil {
		return nil, err
	}
	for _, n := range reduced {
		all = append(all, course{allReduceVerb, n})
		if n < 64*kib {
			all = append(all, course{allReduceVerb + chainedSuffix, n})
		}
	}
	if o.verbSize == "" {
		return append(all, course{barrierVerb + chainedSuffix, 0}), nil
	}
	others, err := parseBytes("-verbs", o.verbSize)
	if err != nil {
		return nil, err
	}
	for _, n := range others {
		for _, v := range collectiveVerbs[1:] {
			all = append(all, course{v.name, n})
		}
	}
	return append(all, course{barrierVerb + chainedSuffix, 0}), nil
}

func parseBytes(name, text string) (sizes []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 4 || n > 1<<30 || n%4 != 0 {
			return nil, fmt.Errorf("%s: %q is no multiple of 4, from 4 to %d", name, part, 1<<30)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// The names of the implementations, and of the columns that compare them.
const (
	byMemory  = "muster, shared memory"
	byTCP     = "muster, TCP"
	inOne     = "muster, one process"
	byBare    = "bare, in place"
	byCopies  = "bare, copied in and out"
	byMPI     = "Open MPI, shared memory"
	byMPITCP  = "Open MPI, TCP"
	byGloo    = "gloo"
	byZerfoo  = "Zerfoo"
	atWhom    = "@"
	whatPeers = "÷ MPI shm,÷ MPI TCP,÷ gloo,÷ Zerfoo,÷ bare,÷ copied"
)

// entrant is a party that can take part in some of the courses.
type entrant struct {
	name string
	who  party
	can  func(c course) bool
}

// invite starts all entrants that can take part, and adds their events to g. stop ends them; it can
// be called after an error too.
func (o *collectiveOptions) invite(ctx context.Context, g *games, rep *report, all []course) (stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	var who []entrant
	for _, start := range []func(context.Context, *report) ([]entrant, func(), error){o.inviteOurs, o.inviteMPI, o.inviteGloo, o.inviteZerfoo} {
		more, gone, err := start(ctx, rep)
		stops = append(stops, gone)
		if err != nil {
			return stop, err
		}
		who = append(who, more...)
	}
	for _, c := range all {
		for _, w := range who {
			if w.can(c) {
				o.add(g, w, c)
			}
		}
	}
	if len(g.events) == 0 {
		return stop, fmt.Errorf("-ways: %q matches none", o.ways.String())
	}
	return stop, nil
}

func (o *collectiveOptions) add(g *games, w entrant, c course) {
	way := c.verb + atWhom + w.name
	if !o.ways.is(way) {
		return
	}
	bases := map[string]string{}
	if strings.HasPrefix(w.name, "muster") {
		columns := strings.Split(whatPeers, ",")
		for i, peer := range []string{byMPI, byMPITCP, byGloo, byZerfoo, byBare, byCopies} {
			bases[columns[i]] = c.verb + atWhom + peer
		}
	}
	g.events = append(g.events, &event{who: w.who, way: way, bytes: c.bytes, name: []string{bytesText(c.bytes), c.verb, w.name}, bases: bases})
}

func anything(course) bool { return true }

func allReduces(c course) bool { return isVerb(c, allReduceVerb) }

func isVerb(c course, names ...string) bool {
	verb, _, _ := strings.Cut(c.verb, chainedSuffix)
	return slices.Contains(names, verb)
}

// inviteOurs starts the entrants that this program implements.
func (o *collectiveOptions) inviteOurs(ctx context.Context, _ *report) (who []entrant, stop func(), err error) {
	var teams []*team
	stop = func() {
		for _, t := range teams {
			t.stop()
		}
	}
	for _, x := range []struct {
		name, how string
		each      int // ranks per process
		can       func(course) bool
	}{
		{byMemory, ranksNear, 1, anything},
		{byTCP, ranksFar, 1, anything},
		{inOne, ranksNear, o.size, anything},
		{byBare, ranksBare, o.size, allReduces},
		{byCopies, ranksBare, o.size, allReduces},
	} {
		if !o.wanted(x.name) {
			continue
		}
		t, err := startReducers(ctx, reducersOptions{size: o.size, each: x.each, how: x.how, profile: o.profile})
		if err != nil {
			return nil, stop, err
		}
		teams = append(teams, t)
		who = append(who, entrant{x.name, &ensemble{t}, x.can})
	}
	return who, stop, nil
}

// wanted reports whether -ways selects any way of this name.
func (o *collectiveOptions) wanted(name string) bool {
	all, _ := o.parse()
	return slices.ContainsFunc(all, func(c course) bool { return o.ways.is(c.verb + atWhom + name) })
}

// ensemble is a team as one party. Its lap is that of the slowest rank in each call, or of rank 0
// if calls are chained.
type ensemble struct{ *team }

func (e *ensemble) turn(ctx context.Context, way string, bytes, count int) ([]lap, time.Duration, error) {
	laps, ended, err := e.team.turn(ctx, way, bytes, count)
	if err != nil {
		return nil, 0, err
	}
	return []lap{merged(laps, isChained(way))}, ended, nil
}

func isChained(way string) bool { return strings.Contains(way, chainedSuffix) }

// merged combines the laps of several ranks into one.
func merged(laps []lap, chained bool) (all lap) {
	for i, l := range laps {
		all.CPU += l.CPU
		all.Alloc = max(all.Alloc, l.Alloc)
		if i == 0 {
			all.Took = slices.Clone(l.Took)
			continue
		}
		for n, t := range l.Took {
			if !chained {
				all.Took[n] = max(all.Took[n], t)
			}
		}
	}
	return all
}

// inviteMPI returns no entrants if Open MPI is missing.
func (o *collectiveOptions) inviteMPI(ctx context.Context, rep *report) ([]entrant, func(), error) {
	noCleanup := func() {}
	if !o.mpi || !o.wanted(byMPI) && !o.wanted(byMPITCP) {
		return nil, noCleanup, nil
	}
	program, err := buildMPI(ctx)
	if errors.Is(err, errNoMPI) {
		rep.note("NO OPEN MPI: %v", err)
		return nil, noCleanup, nil
	}
	if err != nil {
		return nil, noCleanup, err
	}
	return []entrant{
		{byMPI, &mpiCollective{program, o.size, overMemory}, anything},
		{byMPITCP, &mpiCollective{program, o.size, overTCP}, anything},
	}, program.remove, nil
}

// overMemory are the arguments that make Open MPI use shared memory.
var overMemory = []string{"--mca", "btl", "vader,self"}

// mpiCollective is Open MPI. It runs only for its turn, since its processes use the CPU while they
// wait.
type mpiCollective struct {
	program *mpiProgram
	size    int
	way     []string // arguments for mpirun
}

func (m *mpiCollective) pids() []int { return nil }

func (m *mpiCollective) turn(ctx context.Context, way string, n, count int) ([]lap, time.Duration, error) {
	name, _, _ := strings.Cut(way, atWhom)
	chained := "0"
	if isChained(way) {
		name, chained = strings.TrimSuffix(name, chainedSuffix), "1"
	}
	return m.program.laps(ctx, m.size, m.way, count, "collective", name, strconv.Itoa(n), strconv.Itoa(count), chained)
}

// inviteGloo returns no entrants if torch is missing.
func (o *collectiveOptions) inviteGloo(ctx context.Context, rep *report) ([]entrant, func(), error) {
	noCleanup := func() {}
	if !o.wanted(byGloo) {
		return nil, noCleanup, nil
	}
	t, err := spawnTorch(ctx, o.python, collectiveScript, o.size, rep)
	if err != nil || t == nil {
		return nil, noCleanup, err
	}
	can := func(c course) bool { return isVerb(c, allReduceVerb, "broadcast", "all-gather", barrierVerb) }
	return []entrant{{byGloo, &ensemble{t}, can}}, t.stop, nil
}

// inviteZerfoo starts a program of the user's. Each rank gets its number, the number of ranks, and
// a free address for rank 0, and takes turns as gloo's script does.
func (o *collectiveOptions) inviteZerfoo(ctx context.Context, rep *report) ([]entrant, func(), error) {
	noCleanup := func() {}
	if o.zerfoo == "" {
		rep.note("NO ZERFOO: -zerfoo names no program that is a rank of it")
		return nil, noCleanup, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // finds a free address for rank 0
	if err != nil {
		return nil, noCleanup, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, noCleanup, err
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &team{cancel: cancel}
	for rank := range o.size {
		p, err := start("Zerfoo", exec.CommandContext(ctx, o.zerfoo, strconv.Itoa(rank), strconv.Itoa(o.size), addr))
		if err != nil {
			cancel()
			return nil, noCleanup, fmt.Errorf("-zerfoo: %w", err)
		}
		t.ranks = append(t.ranks, p)
	}
	can := func(c course) bool {
		return c.verb == allReduceVerb && c.bytes >= mib || c.verb == barrierVerb+chainedSuffix
	}
	return []entrant{{byZerfoo, &ensemble{t}, can}}, t.stop, nil
}
