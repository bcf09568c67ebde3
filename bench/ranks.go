package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type ranksOptions struct {
	counts     []int
	each, host int
	rounds     int
	budget     time.Duration
	asJSON     bool
	direct     bool
}

// ranksVerbs are the verbs of a group, in this order. Connect and join come first, once.
var ranksVerbs = []string{"barrier", "all-gather 64 B", "broadcast 1 KiB"}

// runRanks measures the cost of groups of growing size over real sockets: with ranks that connect
// to the store, and with a relay for each host.
func runRanks(ctx context.Context, args []string, out io.Writer) error {
	o := ranksOptions{}
	f := flag.NewFlagSet("ranks", flag.ContinueOnError)
	counts := f.String("n", "100,300,1000,3000,10000", "ranks, each with a connection; growth is fitted to all")
	f.IntVar(&o.each, "each", 1000, "ranks in one client process")
	f.IntVar(&o.host, "host", 8, "ranks behind a relay, in the second way; 0 leaves that out")
	f.BoolVar(&o.direct, "direct", true, "the first way: connected to the store")
	f.IntVar(&o.rounds, "rounds", 20, "calls of each verb")
	f.DurationVar(&o.budget, "budget", 8*time.Second, "time for the calls of one verb, of which there is one at least")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := o.check(*counts); err != nil {
		return err
	}
	rep := newReport("ranks", "ms", "worst ms", "store µs/rank", "relays µs/rank", "ranks µs/rank", "to store B/rank", "from store B/rank", "resent", "store RSS KiB/rank", "heap+stack KiB/rank", "broken")
	rep.note("ms: until the last rank has it, the median of at most %d; µs: CPU time of one call, by all processes of that kind; B: on the store's connections, without TCP/IP; resent: packets, of all connections", o.rounds)
	rep.note("KiB of the store, beyond an empty one; broken: connections that were reset, of all; growth: x of what grows as n^x in total, fitted to the rows above")
	var failed error // the rows that were measured before an error are reported too
	for _, way := range o.ways() {
		var all []rankRows
		for _, n := range o.counts {
			rows, err := o.measure(ctx, way, n)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%d ranks, %s: %w", n, way, err))
				break
			}
			for _, r := range rows {
				rep.add(r.figures, way, strconv.Itoa(n), r.verb)
			}
			all = append(all, rankRows{n, rows})
		}
		for _, r := range growth(all) {
			rep.add(r.figures, way, "growth", r.verb)
		}
	}
	return errors.Join(failed, rep.write(out, o.asJSON))
}

func (o *ranksOptions) ways() (ways []string) {
	if o.direct {
		ways = append(ways, "direct")
	}
	if o.host > 0 {
		ways = append(ways, "relays")
	}
	return ways
}

func (o *ranksOptions) check(counts string) error {
	for s := range strings.SplitSeq(counts, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-n %s: %q is no number of ranks", counts, s)
		}
		o.counts = append(o.counts, n)
	}
	if o.each < 1 || o.host < 0 || o.rounds < 1 || len(o.ways()) == 0 {
		return errors.New("-each and -rounds are 1 at least, and there is one way at least")
	}
	slices.Sort(o.counts)
	return checkFiles(max(o.counts[len(o.counts)-1], 2*o.each) + 100)
}

// checkFiles rejects a run that would exceed the limit on open files, which Go has already raised
// to its maximum.
func checkFiles(n int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < uint64(n) {
		return fmt.Errorf("a process needs %d file descriptors, and may have %d: raise ulimit -Hn, or use fewer ranks", n, limit.Max)
	}
	return nil
}

// rankRow is the result of one verb; rankRows are the results of all verbs, for one number of
// ranks.
type (
	rankRow struct {
		verb    string
		figures map[string]float64
	}
	rankRows struct {
		n    int
		rows []rankRow
	}
)

// growth fits the x of n^x to the totals of each verb.
func growth(all []rankRows) (rows []rankRow) {
	if len(all) < 2 {
		return nil
	}
	for i, first := range all[0].rows {
		figures := map[string]float64{}
		for name := range first.figures {
			var ns, vs []float64
			for _, rs := range all {
				v := rs.rows[i].figures[name]
				if strings.HasSuffix(name, "/rank") {
					v *= float64(rs.n)
				}
				ns, vs = append(ns, float64(rs.n)), append(vs, v)
			}
			if x, ok := exponent(ns, vs); ok && name != "broken" && name != "resent" {
				figures[name] = x
			}
		}
		rows = append(rows, rankRow{first.verb, figures})
	}
	return rows
}

// rankProcesses are the client processes of one measurement.
type rankProcesses []*process

// askAll sends the same command to all, and returns their answers.
func (cs rankProcesses) askAll(what string) ([]string, error) {
	answers := make([]string, len(cs))
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() { answers[i], errs[i] = c.ask(what) })
	}
	wg.Wait()
	return answers, errors.Join(errs...)
}

// ask sends the same command to all, and returns the longest time that one answers.
func (cs rankProcesses) ask(what string) (slowest time.Duration, err error) {
	answers, err := cs.askAll(what)
	if err != nil {
		return 0, err
	}
	for _, a := range answers {
		took, err := time.ParseDuration(a)
		if err != nil {
			return 0, err
		}
		slowest = max(slowest, took)
	}
	return slowest, nil
}

func (cs rankProcesses) cpu() (sum time.Duration) {
	for _, c := range cs {
		sum += cpuTime(c.cmd.Process.Pid)
	}
	return sum
}

// traffic returns the sum of the traffic of the connections.
func (cs rankProcesses) traffic() (sum traffic, err error) {
	answers, err := cs.askAll("traffic")
	for _, a := range answers {
		var t traffic
		if _, e := fmt.Sscan(a, &t.out, &t.in, &t.resent); e != nil && err == nil {
			err = fmt.Errorf("%q: %w", a, e)
		}
		sum = sum.plus(t)
	}
	return sum, err
}

func (cs rankProcesses) stop() {
	for _, c := range cs {
		c.stop()
	}
}

// field is a store, its ranks, and the relays between them, if any.
type field struct {
	n      int
	store  *server
	relays rankProcesses
	ranks  rankProcesses
	empty  memoryUse
}

func (f *field) stop() {
	f.ranks.stop()
	f.relays.stop()
	f.store.kill()
}

// open starts the processes. Only relays connect yet.
func (o *ranksOptions) open(ctx context.Context, way string, n int) (*field, error) {
	s, err := spawnServer(ctx, "muster", "muster", newWireDialect)
	if err != nil {
		return nil, err
	}
	f := &field{n: n, store: s}
	for first := 0; first < n && err == nil; first += o.each {
		err = o.openSome(ctx, f, way, first, min(first+o.each, n))
	}
	if err == nil {
		f.empty, err = s.askMemory()
	}
	if err != nil {
		f.stop()
		return nil, err
	}
	return f, nil
}

// openSome starts a process with some of the ranks, and a process with their relays.
func (o *ranksOptions) openSome(ctx context.Context, f *field, way string, first, end int) error {
	addrs, host := f.store.addr, 1
	if way == "relays" {
		host = o.host
		p, err := spawn(ctx, "relays", f.store.addr, strconv.Itoa((end-first+host-1)/host))
		if err != nil {
			return err
		}
		f.relays = append(f.relays, p)
		if addrs, err = p.line(); err != nil {
			return err
		}
	}
	p, err := spawn(ctx, "rank-process", addrs, strconv.Itoa(first), strconv.Itoa(end), strconv.Itoa(f.n), strconv.Itoa(host))
	if err == nil {
		f.ranks = append(f.ranks, p)
	}
	return err
}

func (o *ranksOptions) measure(ctx context.Context, way string, n int) (rows []rankRow, err error) {
	f, err := o.open(ctx, way, n)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	for _, verb := range append([]string{"connect", "join"}, ranksVerbs...) {
		rounds := o.rounds
		if verb == "connect" || verb == "join" {
			rounds = 1
		}
		figures, err := f.step(verb, rounds, o.budget)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", verb, err)
		}
		use, err := f.store.askMemory()
		if err != nil {
			return nil, err
		}
		rss, heap := use.perConn(f.empty, n)
		figures["store RSS KiB/rank"], figures["heap+stack KiB/rank"] = rss/1024, heap/1024
		rows = append(rows, rankRow{verb, figures})
	}
	broken, err := f.ranks.ask("broken") // as many ns as broken connections
	for _, r := range rows {
		r.figures["broken"] = float64(broken)
	}
	return rows, err
}

// spent is what all processes have used so far.
type spent struct {
	store, relays, ranks time.Duration
	traffic              traffic // of the store's connections
	resent               uint64  // of all connections
}

func (f *field) spent() (u spent, err error) {
	u = spent{store: cpuTime(f.store.cmd.Process.Pid), relays: f.relays.cpu(), ranks: f.ranks.cpu()}
	if u.traffic, err = f.ranks.traffic(); err != nil {
		return u, err
	}
	u.resent = u.traffic.resent
	if len(f.relays) > 0 {
		u.traffic, err = f.relays.traffic()
		u.resent += u.traffic.resent
	}
	return u, err
}

// step makes all ranks run a verb several times, one call after the other.
func (f *field) step(verb string, rounds int, budget time.Duration) (map[string]float64, error) {
	before, err := f.spent()
	if err != nil {
		return nil, err
	}
	var took []float64
	for began := time.Now(); len(took) == 0 || len(took) < rounds && time.Since(began) < budget; {
		d, err := f.ranks.ask(verb)
		if err != nil {
			return nil, err
		}
		took = append(took, 1e3*d.Seconds())
	}
	after, err := f.spent()
	if err != nil {
		return nil, err
	}
	each := float64(len(took) * f.n)
	figures := map[string]float64{
		"ms": median(took), "worst ms": slices.Max(took),
		"store µs/rank": micros(after.store-before.store) / each, "ranks µs/rank": micros(after.ranks-before.ranks) / each,
		"to store B/rank":   float64(after.traffic.out-before.traffic.out) / each,
		"from store B/rank": float64(after.traffic.in-before.traffic.in) / each,
		"resent":            float64(after.resent - before.resent),
	}
	if len(f.relays) > 0 {
		figures["relays µs/rank"] = micros(after.relays-before.relays) / each
	}
	return figures, nil
}
