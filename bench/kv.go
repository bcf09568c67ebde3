package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// kvOptions are the flags of bench kv.
type kvOptions struct {
	rounds, idle, size int
	slice              time.Duration
	redis, asJSON      bool
	shapes, ops        string
	profile            string
	data, other        string
}

func runKV(ctx context.Context, args []string, out io.Writer) error {
	var o kvOptions
	f := flag.NewFlagSet("kv", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 9, "rounds; each peer has one turn in each")
	f.DurationVar(&o.slice, "slice", 250*time.Millisecond, "length of a turn")
	f.IntVar(&o.size, "size", 64, "bytes of a value")
	f.IntVar(&o.idle, "idle", 0, "also measure muster beside so many idle connections")
	f.BoolVar(&o.redis, "redis", true, "measure redis-server too")
	f.StringVar(&o.shapes, "shapes", "1x1,50x1,1x16,50x16", "connections x requests under way on each")
	f.StringVar(&o.ops, "ops", "get,set", "operations")
	f.StringVar(&o.profile, "profile", "", "folder for a CPU profile of muster's server (and of the load, to which all contribute)")
	f.StringVar(&o.data, "data", "", "also measure a durable muster, and redis with appendfsync always, in folders below this one")
	f.StringVar(&o.other, "other", "", "measure the muster of another build of this program too: this file")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	shapes, err := parseShapes(o.shapes)
	if err != nil {
		return err
	}
	for op := range strings.SplitSeq(o.ops, ",") {
		if op := operation(op); op != opGet && op != opSet {
			return fmt.Errorf("there is no operation %q: get or set", op)
		}
	}
	r, err := o.spawn(ctx)
	defer r.stop()
	if err != nil {
		return err
	}
	if o.profile != "" {
		stop, err := profileCPU(filepath.Join(o.profile, "load.pprof"))
		if err != nil {
			return err
		}
		defer stop()
	}
	rep := newReport("kv", "ops/s", "p50 µs", "p99 µs", "server µs/op", "client µs/op", "rate ÷ bare", "rate ÷ redis", "p99 ÷ redis", "CPU ÷ redis", "Δ idle %", "others %")
	rep.note("values of %d B; medians of the calmer half of %d rounds of %v; µs/op is CPU time", o.size, o.rounds, o.slice)
	if err := o.measure(ctx, r.servers, shapes, rep); err != nil {
		return err
	}
	return rep.write(out, o.asJSON)
}

func parseShapes(s string) (shapes []shape, err error) {
	for part := range strings.SplitSeq(s, ",") {
		var sh shape
		if n, _ := fmt.Sscanf(part, "%dx%d", &sh.conns, &sh.depth); n != 2 || sh.conns < 1 || sh.depth < 1 {
			return nil, fmt.Errorf("shape %q is not like 50x16", part)
		}
		shapes = append(shapes, sh)
	}
	return shapes, nil
}

// rivals are the servers of a run, and other resources to release when it ends.
type rivals struct {
	servers []*server
	holders []*process // of idle connections
	dirs    []string   // removed at the end
}

func (r *rivals) stop() {
	for _, h := range r.holders {
		h.stop()
	}
	for _, s := range r.servers {
		s.kill()
	}
	for _, dir := range r.dirs {
		_ = os.RemoveAll(dir)
	}
}

func (r *rivals) add(s *server, err error) error {
	if err == nil {
		r.servers = append(r.servers, s)
	}
	return err
}

// spawn starts the servers. It returns the servers that were started with an error too.
func (o *kvOptions) spawn(ctx context.Context) (r *rivals, err error) {
	r = new(rivals)
	var profile []string
	if o.profile != "" {
		profile = []string{filepath.Join(o.profile, "muster.pprof")}
	}
	if err := r.add(spawnServer(ctx, "muster", "muster", newWireDialect, profile...)); err != nil {
		return r, err
	}
	if o.other != "" {
		if err := r.add(spawnOther(ctx, "other", o.other)); err != nil {
			return r, err
		}
	}
	if err := r.add(spawnServer(ctx, "bare", "bare", newBareDialect)); err != nil {
		return r, err
	}
	if o.redis {
		if err := r.add(spawnRedis(ctx, "redis", "--appendonly", "no", "--dir", os.TempDir())); err != nil {
			return r, err
		}
	}
	if o.data != "" {
		if err := o.addDurable(ctx, r); err != nil {
			return r, err
		}
	}
	if o.idle > 0 {
		return r, r.addIdle(ctx, o.idle, "muster+idle")
	}
	return r, nil
}

// addDurable starts servers that write each change to disk before they answer.
func (o *kvOptions) addDurable(ctx context.Context, r *rivals) error {
	dir, err := os.MkdirTemp(o.data, "durable-*")
	if err != nil {
		return err
	}
	r.dirs = append(r.dirs, dir)
	args := []string{"-data", filepath.Join(dir, "muster")}
	if o.profile != "" {
		args = append(args, filepath.Join(o.profile, "durable.pprof"))
	}
	if err := r.add(spawnServer(ctx, "muster+disk", "muster", newWireDialect, args...)); err != nil {
		return err
	}
	if o.other != "" {
		if err := r.add(spawnOther(ctx, "other+disk", o.other, "-data", filepath.Join(dir, "other"))); err != nil {
			return err
		}
	}
	if o.idle > 0 {
		if err := r.addIdle(ctx, o.idle, "muster+disk+idle", "-data", filepath.Join(dir, "idle")); err != nil {
			return err
		}
	}
	if !o.redis {
		return nil
	}
	aof := filepath.Join(dir, "redis")
	if err := os.Mkdir(aof, 0o700); err != nil {
		return err
	}
	return r.add(spawnRedis(ctx, "redis+disk", "--appendonly", "yes", "--appendfsync", "always", "--dir", aof))
}

// addIdle starts one more muster server, and a process that holds n idle connections to it.
func (r *rivals) addIdle(ctx context.Context, n int, name string, args ...string) error {
	s, err := spawnServer(ctx, name, "muster", newWireDialect, args...)
	if err := r.add(s, err); err != nil {
		return err
	}
	h, err := spawn(ctx, "idle", s.addr, strconv.Itoa(n))
	if err != nil {
		return err
	}
	r.holders = append(r.holders, h)
	_, err = h.line()
	return err
}

// measure gives every server its turn in each round.
func (o *kvOptions) measure(ctx context.Context, servers []*server, shapes []shape, rep *report) error {
	value := []byte(strings.Repeat("x", o.size))
	for _, s := range servers {
		if err := fill(ctx, s, value); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for _, sh := range shapes {
		for op := range strings.SplitSeq(o.ops, ",") {
			var rounds []kvRound
			for range o.rounds {
				r, err := takeTurns(ctx, servers, sh, operation(op), value, o.slice)
				if err != nil {
					return err
				}
				rounds = append(rounds, r)
			}
			rounds = calmest(rounds, func(r kvRound) float64 { return r.others })
			for _, s := range servers {
				rep.add(kvFigures(rounds, s.name), op, sh.String(), s.name)
			}
		}
	}
	return nil
}

// kvRound is a turn of each server.
type kvRound struct {
	others float64
	of     map[string]sample
}

// takeTurns puts a load on each server for a time slice.
func takeTurns(ctx context.Context, servers []*server, sh shape, op operation, value []byte, slice time.Duration) (kvRound, error) {
	r := kvRound{of: map[string]sample{}}
	processes := map[*process]bool{} // a server may have several turns
	for _, s := range servers {
		processes[s.process] = true
	}
	ours := func() (sum time.Duration) {
		for p := range processes {
			sum += cpuTime(p.cmd.Process.Pid)
		}
		return sum + ownCPU()
	}
	w, before := startWatch(), ours()
	for _, s := range servers {
		x, err := measure(ctx, s, sh, op, value, slice)
		if err != nil {
			return r, fmt.Errorf("%s %s %s: %w", s.name, op, sh, err)
		}
		r.of[s.name] = x
	}
	r.others = w.others(ours() - before)
	return r, nil
}

func kvFigures(rounds []kvRound, name string) map[string]float64 {
	of := func(name string, f func(sample) float64) []float64 {
		return each(rounds, func(r kvRound) float64 { return f(r.of[name]) })
	}
	rate := func(s sample) float64 { return s.rate }
	p99 := func(s sample) float64 { return s.p99 }
	cpu := func(s sample) float64 { return s.serverCPU }
	figures := map[string]float64{
		"ops/s":        median(of(name, rate)),
		"p50 µs":       median(of(name, func(s sample) float64 { return s.p50 })),
		"p99 µs":       median(of(name, p99)),
		"server µs/op": median(of(name, cpu)),
		"client µs/op": median(of(name, func(s sample) float64 { return s.clientCPU })),
		"others %":     100 * medianOf(rounds, func(r kvRound) float64 { return r.others }),
	}
	switch name {
	case "muster", "other":
		figures["rate ÷ bare"] = median(ratios(of(name, rate), of("bare", rate)))
		figures["rate ÷ redis"] = median(ratios(of(name, rate), of("redis", rate)))
		figures["p99 ÷ redis"] = median(ratios(of(name, p99), of("redis", p99)))
		figures["CPU ÷ redis"] = median(ratios(of(name, cpu), of("redis", cpu)))
	case "muster+disk", "other+disk":
		figures["rate ÷ redis"] = median(ratios(of(name, rate), of("redis+disk", rate)))
		figures["p99 ÷ redis"] = median(ratios(of(name, p99), of("redis+disk", p99)))
		figures["CPU ÷ redis"] = median(ratios(of(name, cpu), of("redis+disk", cpu)))
	}
	if busy, idle := strings.CutSuffix(name, "+idle"); idle {
		figures["Δ idle %"] = 100 * (median(ratios(of(name, rate), of(busy, rate))) - 1)
	}
	return figures
}
