package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/benchcase"
)

// The implementations of a group's verbs.
const (
	byStar  = "bare"
	byGroup = "muster"
)

type groupsOptions struct {
	turns
	sizes string
	mpi   bool
}

func runGroups(ctx context.Context, args []string, out io.Writer) error {
	var o groupsOptions
	f := flag.NewFlagSet("groups", flag.ContinueOnError)
	f.StringVar(&o.sizes, "n", "2,4,8,16", "numbers of processes")
	f.BoolVar(&o.mpi, "mpi", false, "measure Open MPI too, over TCP and over shared memory")
	o.flags(f, 9, 150*time.Millisecond)
	if err := f.Parse(args); err != nil {
		return err
	}
	sizes, err := parseNumbers("-n", o.sizes, 2, 255)
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
	rep := newReport("groups", p50Column, "p90 µs", "mean µs", "CPU µs", "p50 ÷ bare", "÷ MPI TCP", "÷ MPI shm", othersColumn)
	rep.note("CPU of all ranks together; broadcast: until the slowest rank has it, and CPU with the barrier before; ping-pong: rank 0 to 1 and back")
	rep.note("medians of the calmer half of %d rounds of %v", o.rounds, o.slice)
	for _, n := range sizes {
		if err := o.measure(ctx, n, mpi, rep); err != nil {
			return fmt.Errorf("%d processes: %w", n, err)
		}
	}
	return rep.write(out, o.asJSON)
}

// measure runs a group of n processes, and n of Open MPI by turns.
func (o *groupsOptions) measure(ctx context.Context, n int, mpi *mpiProgram, rep *report) error {
	ranks, err := startRanks(ctx, n, "")
	if err != nil {
		return err
	}
	defer ranks.stop()
	t := o.turns
	t.pids = ranks.pids()
	for _, v := range groupVerbs {
		way := v.name + atWhom
		if !v.fenced {
			way = v.name + chainedSuffix + atWhom
		}
		title := strings.TrimSuffix(v.name+" "+bytesText(v.bytes), " 0 B")
		add := func(who party, name, by string) {
			e := partyEvent(who, way+by, v.bytes, false, strconv.Itoa(n), title, name)
			e.bases = map[string]ratio{}
			if by == byGroup {
				e.bases["p50 ÷ bare"] = ratio{p50Column, wayKey(way+byStar, v.bytes)}
				e.bases["÷ MPI TCP"] = ratio{p50Column, wayKey(way+byMPITCP, v.bytes)}
				e.bases["÷ MPI shm"] = ratio{p50Column, wayKey(way+byMPI, v.bytes)}
			}
			t.events = append(t.events, e)
		}
		add(ranks, byStar, byStar)
		if mpi != nil {
			add(&mpiParty{mpi, n, overTCP, true}, "mpi", byMPITCP)
			add(&mpiParty{mpi, n, overMemory, true}, "mpi shm", byMPI)
		}
		add(ranks, byGroup, byGroup)
	}
	if err := t.play(ctx); err != nil {
		return err
	}
	t.addRows(rep)
	return nil
}

// groupVerb is an operation of a group, in both implementations.
type groupVerb struct {
	name   string // of the case, too
	bytes  int    // size of the object
	fenced bool   // each call begins after a barrier, and its time is that of the slowest rank
	bare   func(r *rank, object, got []byte) error
}

var groupVerbs = []groupVerb{
	{name: "barrier", bare: func(r *rank, _, _ []byte) error { return r.star.barrier() }},
	{name: "all-gather", bytes: kib, bare: bareGather},
	{name: "broadcast", bytes: kib, fenced: true, bare: bareBroadcast},
	{name: "broadcast", bytes: mib, fenced: true, bare: bareBroadcast},
	{name: "ping-pong", bytes: kib, bare: barePingPong},
}

func bareGather(r *rank, object, got []byte) error { return r.star.call(starGather, 0, object, got) }

func bareBroadcast(r *rank, object, got []byte) error {
	reply := got[:len(object)]
	if r.rank != 0 {
		object = nil
	}
	return r.star.call(starBroadcast, 0, object, reply)
}

func barePingPong(r *rank, object, got []byte) error {
	got = got[:len(object)]
	switch r.rank {
	case 0:
		return r.star.call(starSend, 1, object, got)
	case 1:
		if err := r.star.call(starSend, 1, nil, got); err != nil {
			return err
		}
		return r.star.call(starSend, 0, object, nil)
	}
	return nil
}

// openGroupVerb prepares a verb of groupVerbs.
func (r *rank) openGroupVerb(d *drill, verb, who string, bytes int) error {
	object := make([]byte, bytes)
	if who == byGroup {
		c, muster := benchcase.Find(verb), &benchcase.Rank{Group: r.groups[near], Object: object}
		d.call = func() error { return c.Run(context.Background(), muster) }
		return nil
	}
	got := make([]byte, r.size*bytes) // what the star delivers
	v := groupVerbs[slices.IndexFunc(groupVerbs, func(v groupVerb) bool { return v.name == verb })]
	d.call = func() error { return v.bare(r, object, got) }
	return nil
}
