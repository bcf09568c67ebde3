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
	sizes       string
	rounds      int
	slice       time.Duration
	mpi, asJSON bool
}

func runGroups(ctx context.Context, args []string, out io.Writer) error {
	var o groupsOptions
	f := flag.NewFlagSet("groups", flag.ContinueOnError)
	f.StringVar(&o.sizes, "n", "2,4,8,16", "numbers of processes")
	f.IntVar(&o.rounds, "rounds", 9, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 150*time.Millisecond, "length of a turn")
	f.BoolVar(&o.mpi, "mpi", false, "measure Open MPI over TCP too")
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
	rep := newReport("groups", "p50 µs", "p90 µs", "mean µs", "rank 0 CPU µs", "p50 ÷ bare", "mean ÷ bare", "CPU ÷ bare", "p50 ÷ MPI")
	rep.note("medians of %d rounds of %v; broadcast: until the slowest rank has it; pingpong: rank 0 to 1 and back", o.rounds, o.slice)
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

// measure runs a group of n processes, and then Open MPI's.
func (o *groupsOptions) measure(ctx context.Context, n int, mpi *mpiProgram, rep *report) error {
	found, err := o.group(ctx, n)
	if err != nil {
		return err
	}
	if mpi != nil {
		more, err := mpi.run(ctx, n, o.slice*time.Duration(o.rounds))
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	of := func(verb, way string, f func(spread) float64) (vs []float64) {
		for _, x := range found {
			if x.Verb == verb && x.Way == way {
				vs = append(vs, f(x.spread))
			}
		}
		return vs
	}
	for _, v := range verbs {
		for _, way := range []string{"bare", "muster", "mpi"} {
			if len(of(v.name, way, p50)) > 0 {
				rep.add(groupFigures(of, v.name, way), strconv.Itoa(n), v.name, way)
			}
		}
	}
	return nil
}

func p50(s spread) float64       { return s.P50 }
func meanOf(s spread) float64    { return s.Mean }
func cpuOfZero(s spread) float64 { return s.CPU }

func groupFigures(of func(verb, way string, f func(spread) float64) []float64, verb, way string) map[string]float64 {
	figures := map[string]float64{
		"p50 µs":  median(of(verb, way, p50)),
		"p90 µs":  median(of(verb, way, func(s spread) float64 { return s.P90 })),
		"mean µs": median(of(verb, way, meanOf)),
	}
	if way != "mpi" {
		figures["rank 0 CPU µs"] = median(of(verb, way, cpuOfZero))
	}
	if way == "muster" {
		figures["p50 ÷ bare"] = median(ratios(of(verb, way, p50), of(verb, "bare", p50)))
		figures["mean ÷ bare"] = median(ratios(of(verb, way, meanOf), of(verb, "bare", meanOf)))
		figures["CPU ÷ bare"] = median(ratios(of(verb, way, cpuOfZero), of(verb, "bare", cpuOfZero)))
		figures["p50 ÷ MPI"] = figures["p50 µs"] / median(of(verb, "mpi", p50))
	}
	return figures
}

// group starts n ranks, and collects what rank 0 tells.
func (o *groupsOptions) group(ctx context.Context, n int) (found []finding, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // kills those who are left
	args := func(rank int, more ...string) []string {
		return append([]string{strconv.Itoa(rank), strconv.Itoa(n), strconv.Itoa(o.rounds), o.slice.String()}, more...)
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
	for range 2 * o.rounds * len(verbs) {
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
