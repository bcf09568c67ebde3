package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
)

type relayOptions struct {
	ranks, hosts, rounds, laps int
	profile                    string
	asJSON                     bool
}

// runRelay measures barriers of ranks that connect to the store, beside those of as many behind a relay for each host, in turns.
func runRelay(ctx context.Context, args []string, out io.Writer) error {
	var o relayOptions
	f := flag.NewFlagSet("relay", flag.ContinueOnError)
	f.IntVar(&o.ranks, "n", 1000, "ranks, each with a socket of its own")
	f.IntVar(&o.hosts, "hosts", 10, "hosts: processes of ranks, each beside a process that is its relay")
	f.IntVar(&o.rounds, "rounds", 5, "turns of each way")
	f.IntVar(&o.laps, "laps", 30, "barriers in a turn")
	f.StringVar(&o.profile, "profile", "", "`path` for a CPU profile of the store that has relays")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.hosts < 1 || o.ranks < o.hosts || o.rounds < 1 || o.laps < 1 {
		return fmt.Errorf("%d ranks on %d hosts, %d laps in %d rounds: it takes one of each", o.ranks, o.hosts, o.laps, o.rounds)
	}
	if err := checkFiles(o.ranks + 100); err != nil {
		return err
	}
	var ways []*topology
	defer func() {
		for _, w := range ways {
			w.stop()
		}
	}()
	for _, real := range []bool{true, false} {
		for _, relays := range []bool{false, true} {
			w, err := o.open(ctx, relays, real)
			if err != nil {
				return err
			}
			ways = append(ways, w)
		}
	}
	for range o.rounds {
		for _, w := range ways {
			if err := w.turn(o.laps); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	return o.report(ways).write(out, o.asJSON)
}

// topology is one of those that are compared: a store, and hosts with their ranks.
type topology struct {
	name   string
	store  *server
	relays []*process
	hosts  []*process
	real   int // hosts whose ranks are real; the others are played
	ranks  int // of which so many are real

	rate, storeCPU, relayCPU, rankCPU, others []float64
}

// open starts a store and hosts. With real, all are; otherwise the first is, and the others are played by who only writes and reads what they would.
func (o *relayOptions) open(ctx context.Context, relays, real bool) (w *topology, err error) {
	w = &topology{name: "direct", real: o.hosts}
	if relays {
		w.name = "relays"
	}
	if !real {
		w.name, w.real = w.name+", 1 real host", 1
	}
	defer func() {
		if err != nil {
			w.stop()
			w = nil
		}
	}()
	if w.store, err = spawnServer(ctx, "muster", "muster", newWireDialect); err != nil {
		return w, err
	}
	for host := range o.hosts {
		first, end := host*o.ranks/o.hosts, (host+1)*o.ranks/o.hosts
		args := []string{w.store.addr, strconv.Itoa(first), strconv.Itoa(end), strconv.Itoa(o.ranks)}
		role := "lappers"
		switch {
		case host >= w.real && relays:
			role, args = "played", append([]string{"relay"}, args...)
		case host >= w.real:
			role, args = "played", append([]string{"direct"}, args...)
		case relays:
			if args[0], err = w.relay(ctx); err != nil {
				return w, err
			}
		}
		p, err := spawn(ctx, role, args...)
		if err != nil {
			return w, err
		}
		w.hosts = append(w.hosts, p)
		if host < w.real {
			w.ranks += end - first
		}
	}
	if o.profile != "" && relays {
		if _, err = w.store.ask("profile " + o.profile); err != nil {
			return w, err
		}
	}
	_, err = crowds(w.hosts).ask("join")
	return w, err
}

// relay starts a relay, and returns where it is.
func (w *topology) relay(ctx context.Context) (string, error) {
	p, err := spawn(ctx, "relay", w.store.addr)
	if err != nil {
		return "", err
	}
	w.relays = append(w.relays, p)
	return p.line()
}

func (w *topology) stop() {
	for _, p := range append(append([]*process{}, w.hosts...), w.relays...) {
		p.stop()
	}
	if w.store != nil {
		w.store.kill()
	}
}

// turn is some barriers, one behind the other.
func (w *topology) turn(laps int) error {
	cpu := func(ps []*process) (sum time.Duration) {
		for _, p := range ps {
			sum += cpuTime(p.cmd.Process.Pid)
		}
		return sum
	}
	stores := []*process{w.store.process}
	machine := startWatch()
	store, relays, ranks := cpu(stores), cpu(w.relays), cpu(w.hosts)
	took, err := crowds(w.hosts).ask("laps " + strconv.Itoa(laps))
	if err != nil {
		return err
	}
	store, relays, ranks = cpu(stores)-store, cpu(w.relays)-relays, cpu(w.hosts)-ranks
	n := float64(laps)
	w.rate = append(w.rate, n/took.Seconds())
	w.storeCPU = append(w.storeCPU, micros(store)/n)
	w.relayCPU = append(w.relayCPU, micros(relays)/n)
	w.rankCPU = append(w.rankCPU, micros(ranks)/n)
	w.others = append(w.others, machine.others(store+relays+ranks))
	return nil
}

func (o *relayOptions) report(ways []*topology) *report {
	rep := newReport("relay", "barriers/s", "÷ direct", "store µs", "relays µs", "ranks µs", "store alone/s", "others %")
	rep.note("%d ranks on %d hosts; medians of %d rounds of %d barriers; CPU time for one barrier; others: their part of the machine", o.ranks, o.hosts, o.rounds, o.laps)
	rep.note("all processes share these CPUs, so that relays cost where hosts of their own would bear it: see \"1 real host\", where the other hosts do as little as there is to do")
	for i, w := range ways {
		direct := ways[i/2*2]
		rep.add(map[string]float64{
			"barriers/s": median(w.rate), "÷ direct": median(ratios(w.rate, direct.rate)),
			"store µs": median(w.storeCPU), "relays µs": median(w.relayCPU), "ranks µs": median(w.rankCPU),
			"store alone/s": 1e6 / median(w.storeCPU), "others %": 100 * median(w.others),
		}, w.name)
	}
	return rep
}

// beRelay is the role of a relay: relay ADDR. It tells its address.
func beRelay(args []string) error {
	addr, stop, err := serveRelay(args[0], nil)
	if err != nil {
		return err
	}
	defer stop()
	tell("%s", addr)
	return listen(func(string) error { return nil })
}

// serveRelay serves a relay to the store at to, until it is told to stop.
func serveRelay(to string, o *store.DialOptions) (addr string, stop func(), err error) {
	r, err := store.NewRelay(context.Background(), "muster://"+to, o)
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(err, r.Close())
	}
	s := &store.Server{Engine: r}
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), func() { _ = errors.Join(s.Close(), r.Close()) }, nil
}

// beLappers is the role of ranks FIRST to END (without it) of SIZE, each a client of its own: lappers ADDR FIRST END SIZE.
func beLappers(args []string) error {
	first, end, size, err := threeNumbers(args[1:])
	if err != nil {
		return err
	}
	c := newCrowd(args[0], 1, first, end, size)
	if _, err := c.each(func(i int) error { return c.connect(context.Background(), i) }); err != nil {
		return err
	}
	return answerLaps(func() error {
		_, err := c.each(func(i int) error { return c.join(context.Background(), i) })
		return err
	}, func(laps int) error {
		_, err := c.each(func(i int) error {
			for range laps {
				if err := c.barrier(context.Background(), i); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	})
}

func threeNumbers(args []string) (a, b, c int, err error) {
	for i, into := range []*int{&a, &b, &c} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return a, b, c, err
		}
	}
	return a, b, c, nil
}

// answerLaps answers "join", and "laps N", with how long that took.
func answerLaps(join func() error, run func(laps int) error) error {
	return listen(func(line string) error {
		began := time.Now()
		if line == "join" {
			if err := join(); err != nil {
				return err
			}
		} else {
			laps, err := strconv.Atoi(strings.TrimPrefix(line, "laps "))
			if err != nil {
				return err
			}
			if err := run(laps); err != nil {
				return err
			}
		}
		tell("%v", time.Since(began))
		return nil
	})
}
