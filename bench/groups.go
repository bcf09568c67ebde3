package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

type groupsOptions struct {
	sizes          string
	rounds         int
	slice          time.Duration
	mpi, asJSON    bool
	verbs, profile string
}

func runGroups(ctx context.Context, args []string, out io.Writer) error {
	var o groupsOptions
	f := flag.NewFlagSet("groups", flag.ContinueOnError)
	f.StringVar(&o.sizes, "n", "2,4,8,16", "numbers of processes")
	f.IntVar(&o.rounds, "rounds", 9, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 150*time.Millisecond, "length of a turn")
	f.BoolVar(&o.mpi, "mpi", false, "measure Open MPI over TCP too")
	f.StringVar(&o.verbs, "verbs", "", "measure only verbs whose name contains this")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of ranks 0 and 1")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	sizes, err := parseSizes(o.sizes)
	if err != nil {
		return err
	}
	var mpi *mpiProgram
	if o.mpi {
		if mpi, err = buildMPI(ctx); err != nil {
			return err
		}
		defer mpi.remove()
	}
	rep := newReport("groups", "p50 µs", "p90 µs", "mean µs", "CPU µs", "p50 ÷ bare", "mean ÷ bare", "CPU ÷ bare", "p50 ÷ MPI", "others %")
	rep.note("medians of the calmer half of %d rounds of %v; CPU of all ranks together; broadcast: until the slowest rank has it, and CPU with the barrier before; ping-pong: rank 0 to 1 and back", o.rounds, o.slice)
	for _, n := range sizes {
		if err := o.measure(ctx, n, mpi, rep); err != nil {
			return fmt.Errorf("%d processes: %w", n, err)
		}
	}
	return rep.write(out, o.asJSON)
}

func parseSizes(s string) (sizes []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 2 || n > 255 {
			return nil, fmt.Errorf("-n: %q is no number from 2 to 255", part)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// measure runs a group of n processes, and then one of Open MPI.
func (o *groupsOptions) measure(ctx context.Context, n int, mpi *mpiProgram, rep *report) error {
	found, err := o.group(ctx, n)
	if err != nil {
		return err
	}
	var byMPI map[string]spread
	if mpi != nil {
		if byMPI, err = mpi.run(ctx, n, o.slice*time.Duration(o.rounds)); err != nil {
			return err
		}
	}
	for _, v := range chosen(o.verbs) {
		var rounds []groupRound
		for i, x := range found {
			if x.Verb == v.name && x.Way == "muster" { // the one before is the bare way
				rounds = append(rounds, groupRound{bare: found[i-1].spread, muster: x.spread})
			}
		}
		rounds = calmest(rounds, groupRound.others)
		peer, ok := byMPI[v.name]
		rep.add(groupFigures(rounds, groupRound.ofBare), strconv.Itoa(n), v.name, "bare")
		figures := groupFigures(rounds, groupRound.ofMuster)
		addRatios(figures, rounds)
		if ok {
			figures["p50 ÷ MPI"] = figures["p50 µs"] / peer.P50
			rep.add(map[string]float64{"p50 µs": peer.P50, "p90 µs": peer.P90, "mean µs": peer.Mean}, strconv.Itoa(n), v.name, "mpi")
		}
		rep.add(figures, strconv.Itoa(n), v.name, "muster")
	}
	return nil
}

// groupRound is one turn of each way.
type groupRound struct{ bare, muster spread }

func (r groupRound) others() float64  { return max(r.bare.Others, r.muster.Others) }
func (r groupRound) ofBare() spread   { return r.bare }
func (r groupRound) ofMuster() spread { return r.muster }

func groupFigures(rounds []groupRound, way func(groupRound) spread) map[string]float64 {
	return map[string]float64{
		"p50 µs":   medianOf(rounds, func(r groupRound) float64 { return way(r).P50 }),
		"p90 µs":   medianOf(rounds, func(r groupRound) float64 { return way(r).P90 }),
		"mean µs":  medianOf(rounds, func(r groupRound) float64 { return way(r).Mean }),
		"CPU µs":   medianOf(rounds, func(r groupRound) float64 { return way(r).CPU }),
		"others %": 100 * medianOf(rounds, groupRound.others),
	}
}

func addRatios(figures map[string]float64, rounds []groupRound) {
	for name, f := range map[string]func(spread) float64{
		"p50 ÷ bare":  func(s spread) float64 { return s.P50 },
		"mean ÷ bare": func(s spread) float64 { return s.Mean },
		"CPU ÷ bare":  func(s spread) float64 { return s.CPU },
	} {
		figures[name] = medianOf(rounds, func(r groupRound) float64 { return f(r.muster) / f(r.bare) })
	}
}

// group starts n ranks, and collects what rank 0 reports.
func (o *groupsOptions) group(ctx context.Context, n int) (found []finding, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // kills the ranks that are left
	args := func(rank int, more ...string) []string {
		return append([]string{strconv.Itoa(rank), strconv.Itoa(n), strconv.Itoa(o.rounds), o.slice.String(), o.profile, o.verbs}, more...)
	}
	zero, err := spawn(ctx, "rank", args(0)...)
	if err != nil {
		return nil, err
	}
	ranks := []*process{zero}
	addrs, err := zero.line()
	if err != nil {
		return nil, err
	}
	for rank := 1; rank < n; rank++ {
		p, err := spawn(ctx, "rank", args(rank, strings.Fields(addrs)...)...)
		if err != nil {
			return nil, err
		}
		ranks = append(ranks, p)
	}
	for range 2 * o.rounds * len(chosen(o.verbs)) {
		var x finding
		line, err := zero.line()
		if err == nil {
			err = json.Unmarshal([]byte(line), &x)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, x)
	}
	for rank, p := range ranks {
		if err := p.finish(); err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return found, nil
}
