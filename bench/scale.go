package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"time"
)

type scaleOptions struct {
	ranks, bytes string
	rounds       int
	slice        time.Duration
	asJSON       bool
}

func runScale(ctx context.Context, args []string, out io.Writer) error {
	var o scaleOptions
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.StringVar(&o.ranks, "n", "2,4,8,16", "numbers of ranks to measure")
	f.StringVar(&o.bytes, "bytes", "1024,65536,1048576,16777216", "sizes of an all-reduce")
	f.IntVar(&o.rounds, "rounds", 5, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 100*time.Millisecond, "length of a turn")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	ranks, err := parseSizes(o.ranks)
	if err != nil {
		return err
	}
	sizes, err := parseBytes("-bytes", o.bytes)
	if err != nil {
		return err
	}
	if o.rounds < 1 {
		return errors.New("-rounds: one at least")
	}
	rep := newReport("scale", "predicted µs", "measured µs", "predicted ÷ measured", "others %", "hierarchical ms", "ring ms", "halving-doubling ms", "recursive doubling ms", "star ms", "halving from", "ring from")
	rep.note("medians of the calmer half of %d rounds of %v; mean of a turn, in which calls follow each other; what the model knows of the machine is measured on 2 ranks, in the same rounds", o.rounds, o.slice)
	var all []speed
	for _, n := range ranks {
		s, err := o.measure(ctx, n, sizes, rep)
		if err != nil {
			return fmt.Errorf("%d ranks: %w", n, err)
		}
		all = append(all, s)
	}
	extrapolate(medianSpeed(all), rep)
	return rep.write(out, o.asJSON)
}

// probe is what is measured of a machine: its mean time, in seconds, and the CPU time of a rank, say what it can do.
type probe struct {
	way   string
	bytes int
	how   string
	into  func(s *speed, took, work float64)
}

const (
	littleProbe = 8
	largeProbe  = 16 * mib
)

// A step of the algorithms is an all-gather of two ranks: each sends, and receives.
var allProbes = []probe{
	{"all-gather, chained@", littleProbe, ranksFar, func(s *speed, took, work float64) { s.Message, s.MessageWork = took, work }},
	{"all-gather, chained@", largeProbe, ranksFar, func(s *speed, took, work float64) {
		s.Byte, s.ByteWork = took/(largeProbe/2), work/(largeProbe/2)
	}},
	{"barrier, chained@", 0, ranksNear, func(s *speed, took, work float64) { s.Meet, s.MeetWork = took, work }},
	{combineProbe + ", chained@", largeProbe, ranksBare, func(s *speed, took, _ float64) { s.Combine = took / largeProbe }},
	{copyProbe + ", chained@", largeProbe, ranksBare, func(s *speed, took, _ float64) { s.Copy = took / largeProbe }},
}

// teams are what one measurement has started.
type teams struct {
	ctx context.Context
	all []*team
}

func (t *teams) stop() {
	for _, x := range t.all {
		x.stop()
	}
}

// start starts ranks, so many in a process.
func (t *teams) start(size, each int, how string) (party, error) {
	x, err := startReducers(t.ctx, reducersOptions{size: size, each: each, how: how})
	if err != nil {
		return nil, err
	}
	t.all = append(t.all, x)
	return &ensemble{x}, nil
}

// probes are events that find out what the machine can do: with 2 ranks, or as many goroutines as there are cores.
func (t *teams) probes() (all []*event, err error) {
	who := map[string]party{}
	for how, size := range map[string]int{ranksFar: 2, ranksNear: 2, ranksBare: runtime.NumCPU()} {
		each := 1
		if how == ranksBare {
			each = size
		}
		if who[how], err = t.start(size, each, how); err != nil {
			return nil, err
		}
	}
	for _, p := range allProbes {
		all = append(all, &event{who: who[p.how], way: p.way, bytes: p.bytes})
	}
	return all, nil
}

// forecast is an event whose time is predicted.
type forecast struct {
	*event
	algorithm string
	at        place
}

// measure plays the probes and all algorithms of n ranks, and compares.
func (o *scaleOptions) measure(ctx context.Context, n int, sizes []int, rep *report) (s speed, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &teams{ctx: ctx}
	defer t.stop()
	probed, err := t.probes()
	if err != nil {
		return s, err
	}
	g := &games{slice: o.slice, rounds: o.rounds, events: probed}
	forecasts, err := o.forecasts(t, n, sizes)
	if err != nil {
		return s, err
	}
	for _, f := range forecasts {
		g.events = append(g.events, f.event)
	}
	if err := g.play(ctx); err != nil {
		return s, err
	}
	for i, e := range probed {
		took, _ := e.calm(func(x turned) float64 { return x.mean })
		work, _ := e.calm(func(x turned) float64 { return x.cpu / 2 })
		allProbes[i].into(&s, took/1e6, work/1e6)
	}
	rep.note("%d ranks: %v", n, s)
	for _, f := range forecasts {
		f.at.speed = s
		measured, others := f.calm(func(x turned) float64 { return x.mean })
		predicted := 1e6 * f.at.time(costOf(f.algorithm, f.at, float64(f.bytes)))
		rep.add(map[string]float64{"predicted µs": predicted, "measured µs": measured, "predicted ÷ measured": predicted / measured, "others %": 100 * others}, f.name...)
	}
	return s, nil
}

// calm is the median of a figure of the calmer half of the turns.
func (e *event) calm(f func(turned) float64) (figure, others float64) {
	rounds := calmest(slices.Clone(e.rounds), func(x turned) float64 { return x.others })
	return medianOf(rounds, f), medianOf(rounds, func(x turned) float64 { return x.others })
}

// forecasts starts n ranks in each kind of place, for all algorithms.
func (o *scaleOptions) forecasts(t *teams, n int, sizes []int) (all []*forecast, err error) {
	for _, x := range []struct {
		how        string
		each       int // ranks of a host
		algorithms []string
	}{
		{ranksFar, 1, []string{ringName, doublingName, halvingName}},
		{ranksNear, n, []string{memoryName}},
		{ranksNear + "2", 2, []string{hierarchicalName}},
	} {
		if n%x.each != 0 || n == x.each && x.how == ranksNear+"2" {
			continue // one host is no hierarchy
		}
		who, err := t.start(n, 1, x.how)
		if err != nil {
			return nil, err
		}
		for _, name := range x.algorithms {
			for _, bytes := range sizes {
				e := &event{who: who, way: allReduceVerb + chainedSuffix + atWhom + name, bytes: bytes, name: []string{strconv.Itoa(n), bytesText(bytes), name}}
				all = append(all, &forecast{e, name, place{hosts: n / x.each, each: x.each, cores: float64(runtime.NumCPU()), shared: true}})
			}
		}
	}
	return all, nil
}

func (s speed) String() string {
	return fmt.Sprintf("a message %.1f µs (work %.1f), a MiB each way %.0f µs (work %.0f), a step over shared memory %.2f µs (work %.2f), a MiB combined %.0f µs, copied %.0f µs",
		1e6*s.Message, 1e6*s.MessageWork, 1e6*mib*s.Byte, 1e6*mib*s.ByteWork, 1e6*s.Meet, 1e6*s.MeetWork, 1e6*mib*s.Combine, 1e6*mib*s.Copy)
}

// medianSpeed is what the extrapolation takes the machine for.
func medianSpeed(all []speed) speed {
	of := func(f func(s speed) float64) float64 { return medianOf(all, f) }
	return speed{
		Message: of(func(s speed) float64 { return s.Message }), MessageWork: of(func(s speed) float64 { return s.MessageWork }),
		Byte: of(func(s speed) float64 { return s.Byte }), ByteWork: of(func(s speed) float64 { return s.ByteWork }),
		Meet: of(func(s speed) float64 { return s.Meet }), MeetWork: of(func(s speed) float64 { return s.MeetWork }),
		Combine: of(func(s speed) float64 { return s.Combine }), Copy: of(func(s speed) float64 { return s.Copy }),
	}
}

// network is what lies between hosts.
type network struct {
	gigabits float64
	latency  time.Duration // one way
}

var networks = []network{{10, 50 * time.Microsecond}, {25, 30 * time.Microsecond}, {100, 20 * time.Microsecond}}

const extrapolatedEach = 8 // ranks of a host, each with a core

var extrapolatedBytes = []int{64 * kib, mib, 16 * mib, 256 * mib}

// extrapolate adds what the model says of clusters that are not here, and where Auto's thresholds would be there.
func extrapolate(s speed, rep *report) {
	rep.note("extrapolated: hosts of %d ranks, or of one, each of which has a core as fast as one here; from: bytes from which on halving-doubling and the ring are best", extrapolatedEach)
	for _, net := range networks {
		for _, hosts := range []int{8, 64, 1024} {
			pl := net.place(s, hosts, extrapolatedEach)
			for _, bytes := range extrapolatedBytes {
				figures := map[string]float64{}
				for _, name := range []string{hierarchicalName, ringName, halvingName, doublingName, starName} {
					figures[name+" ms"] = 1e3 * pl.time(costOf(name, pl, float64(bytes)))
				}
				rep.add(figures, fmt.Sprint(hosts, " × ", extrapolatedEach), bytesText(bytes), net.String())
			}
		}
		for _, hosts := range []int{8, 12, 64, 100, 1024} {
			figures := map[string]float64{}
			halving, ring := thresholds(net.place(s, hosts, 1))
			for name, bytes := range map[string]float64{"halving from": halving, "ring from": ring} {
				if bytes > 0 {
					figures[name] = bytes
				}
			}
			rep.add(figures, fmt.Sprint(hosts, " × 1"), "thresholds", net.String())
		}
	}
}

func (n network) String() string { return fmt.Sprintf("%g Gb/s, %v", n.gigabits, n.latency) }

func (n network) place(s speed, hosts, each int) place {
	return place{speed: s, hosts: hosts, each: each, cores: float64(each), latency: n.latency.Seconds(), link: n.gigabits * 1e9 / 8}
}
