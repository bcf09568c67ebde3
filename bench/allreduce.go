package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

type allReduceOptions struct {
	peers
	bytes string
}

func runAllReduce(ctx context.Context, args []string, out io.Writer) error {
	var o allReduceOptions
	f := flag.NewFlagSet("all-reduce", flag.ContinueOnError)
	f.StringVar(&o.bytes, "bytes", "4,4096,65536,1048576,16777216", "sizes of an all-reduce")
	o.flags(f, 7, 100*time.Millisecond)
	if err := f.Parse(args); err != nil {
		return err
	}
	all, err := o.parse()
	if err != nil {
		return err
	}
	rep := newReport("all-reduce", p50Column, "p90 µs", "mean µs", "CPU µs", "alloc B", "÷ MPI shm", "÷ MPI TCP", "÷ gloo", othersColumn)
	rep.note("%d ranks, float32; time of the slowest rank, behind a barrier of the same library; chained: of calls that follow each other, on rank 0", o.size)
	rep.note("CPU of all ranks with the barrier; alloc: what one rank allocates per verb, of which the barrier is one")
	defer o.stop()
	if err := o.add(ctx, rep, all); err != nil {
		return err
	}
	return o.run(ctx, rep, out)
}

// course is one thing to measure: a verb and a size.
type course struct {
	verb  string
	bytes int
}

func (o *allReduceOptions) parse() (all []course, err error) {
	reduced, err := parseFloats("-bytes", o.bytes)
	for _, n := range reduced {
		all = append(all, course{allReduceVerb, n})
		if n < 64*kib {
			all = append(all, course{allReduceVerb + chainedSuffix, n})
		}
	}
	return append(all, course{barrierVerb + chainedSuffix, 0}), errors.Join(err, o.check())
}

// parseFloats parses sizes of float32 slices, in bytes.
func parseFloats(name, text string) ([]int, error) {
	sizes, err := parseNumbers(name, text, 4, 1<<30)
	if slices.ContainsFunc(sizes, func(n int) bool { return n%4 != 0 }) {
		return nil, fmt.Errorf("%s: %s: not all are multiples of 4", name, text)
	}
	return sizes, err
}

// The names of the implementations.
const (
	byMemory = "muster, shared memory"
	byTCP    = "muster, TCP"
	byMPI    = "Open MPI, shared memory"
	byMPITCP = "Open MPI, TCP"
	byGloo   = "gloo"
)

// peerColumns are the columns that compare with other implementations.
var peerColumns = map[string]string{
	"÷ MPI shm": byMPI, "÷ MPI TCP": byMPITCP, "÷ gloo": byGloo,
}

// entrant is a party, and its implementation.
type entrant struct {
	name string
	who  party
}

// add starts all entrants, and adds their events.
func (o *allReduceOptions) add(ctx context.Context, rep *report, all []course) error {
	entrants, err := o.entrants(ctx, rep)
	if err != nil {
		return err
	}
	for _, c := range all {
		for _, w := range entrants {
			way := c.verb + atWhom + w.name
			if !o.ways.is(way) {
				continue
			}
			e := partyEvent(w.who, way, c.bytes, false, bytesText(c.bytes), c.verb, w.name)
			if strings.HasPrefix(w.name, "muster") {
				e.bases = map[string]ratio{}
				for column, peer := range peerColumns {
					e.bases[column] = ratio{p50Column, wayKey(c.verb+atWhom+peer, c.bytes)}
				}
			}
			o.events = append(o.events, e)
		}
	}
	return nil
}

func (o *allReduceOptions) entrants(ctx context.Context, rep *report) ([]entrant, error) {
	ours, err1 := o.invite(startRanks(ctx, o.size, ""))
	mpi, err2 := o.openMPI(ctx, rep)
	gloo, err3 := o.torch(ctx, rep)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	who := []entrant{{byMemory, ours}, {byTCP, ours}}
	if mpi != nil {
		who = append(who, entrant{byMPI, &mpiParty{mpi, o.size, overMemory, false}}, entrant{byMPITCP, &mpiParty{mpi, o.size, overTCP, false}})
	}
	if gloo != nil {
		who = append(who, entrant{byGloo, gloo})
	}
	return who, nil
}
