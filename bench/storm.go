package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
)

// calm is how long gets are measured before the storm: what the machine does by itself.
const calm = time.Second

// storm measures gets while entries expire, all within a short time.
func (o *ttlOptions) storm(ctx context.Context, out io.Writer) error {
	r, err := o.spawn(ctx, "")
	defer r.stop()
	if err != nil {
		return err
	}
	if err := o.profileMuster(r.servers); err != nil {
		return err
	}
	rep := newReport("ttl: storm", "gets/s", "p50 µs", "p99.9 µs", "max ms", "worst ms",
		"calm p99.9 µs", "calm max ms", "calm worst ms", "gone after ms", "worst gone ms", "server µs/entry", "others %")
	rep.note("%d entries due within %v, one get after the other meanwhile; medians of %d storms, and the worst", o.n, o.window, o.storms)
	rep.note("calm: in the %v before; gone after: from the last deadline until the last entry is gone", calm)
	keys := ttlKeys(o.n)
	storms := map[string][]stormSample{}
	for range o.storms {
		for _, s := range r.servers {
			x, err := o.oneStorm(ctx, s, shuffled(keys), r.servers)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			storms[s.name] = append(storms[s.name], x)
		}
	}
	for _, s := range r.servers {
		rep.note("longest gets of %s, ms: %s", s.name, list(storms[s.name], func(x stormSample) float64 { return x.storm.longest / 1e3 }))
		rep.add(stormFigures(storms[s.name]), s.name)
	}
	return rep.write(out, o.asJSON)
}

func list(xs []stormSample, f func(stormSample) float64) (s string) {
	for i, x := range xs {
		if i > 0 {
			s += ", "
		}
		s += figure(f(x))
	}
	return s
}

// latency is that of gets, in µs.
type latency struct {
	count              int
	p50, p999, longest float64
}

// stormSample is what one storm was like.
type stormSample struct {
	calm, storm latency
	seconds     float64 // of the storm
	gone        float64 // ms after the last deadline
	cpu         float64 // µs an entry, of the server, beyond what the gets cost before
	others      float64
}

func stormFigures(xs []stormSample) map[string]float64 {
	mid := func(f func(stormSample) float64) float64 { return medianOf(xs, f) }
	worst := func(f func(stormSample) float64) float64 { return slices.Max(each(xs, f)) }
	longest := func(x stormSample) float64 { return x.storm.longest / 1e3 }
	calmest := func(x stormSample) float64 { return x.calm.longest / 1e3 }
	gone := func(x stormSample) float64 { return x.gone }
	return map[string]float64{
		"gets/s":   mid(func(x stormSample) float64 { return float64(x.storm.count) / x.seconds }),
		"p50 µs":   mid(func(x stormSample) float64 { return x.storm.p50 }),
		"p99.9 µs": mid(func(x stormSample) float64 { return x.storm.p999 }),
		"max ms":   mid(longest), "worst ms": worst(longest),
		"calm p99.9 µs": mid(func(x stormSample) float64 { return x.calm.p999 }),
		"calm max ms":   mid(calmest), "calm worst ms": worst(calmest),
		"gone after ms": mid(gone), "worst gone ms": worst(gone),
		"server µs/entry": mid(func(x stormSample) float64 { return x.cpu }),
		"others %":        100 * mid(func(x stormSample) float64 { return x.others }),
	}
}

var errLead = errors.New("the entries were not set before the first of them was due: raise -lead")

// oneStorm sets entries, waits until they are due, and watches them go.
func (o *ttlOptions) oneStorm(ctx context.Context, s *server, keys []string, alive []*server) (x stormSample, err error) {
	if err := fill(ctx, s, o.value()); err != nil {
		return x, err
	}
	eye, err := dialClient(ctx, s)
	if err != nil {
		return x, err
	}
	defer eye.conn.Close()
	begin := time.Now().Add(o.lead)
	last := begin
	err = fillTTL(ctx, s, keys, o.value(), func(int) time.Duration {
		due := begin.Add(rand.N(o.window))
		if due.After(last) {
			last = due
		}
		return time.Until(due)
	})
	if err != nil {
		return x, err
	}
	if time.Until(begin) < calm {
		return x, errLead
	}
	before, err := eye.tally()
	if err != nil {
		return x, err
	}
	runtime.GC() // and none while there are gets
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	time.Sleep(time.Until(begin.Add(-calm)))
	g, err := startGets(ctx, s)
	if err != nil {
		return x, err
	}
	calmCPU := cpuTime(s.cmd.Process.Pid)
	time.Sleep(time.Until(begin))
	w, cpu, ours := startWatch(), cpuTime(s.cmd.Process.Pid), cpuOf(alive)
	gone, err := eye.awaitGone(before+int64(len(keys)), last.Add(goneTime))
	x.others = w.others(cpuOf(alive) - ours)
	stormCPU := cpuTime(s.cmd.Process.Pid) - cpu
	if e := g.stop(); e != nil {
		return x, e
	}
	if err != nil {
		return x, err
	}
	x.calm, x.storm = g.between(begin.Add(-calm), begin), g.between(begin, gone)
	x.seconds, x.gone = gone.Sub(begin).Seconds(), 1e3*gone.Sub(last).Seconds()
	perGet := micros(cpu-calmCPU) / float64(max(x.calm.count, 1))
	x.cpu = (micros(stormCPU) - perGet*float64(x.storm.count)) / float64(len(keys))
	return x, nil
}

// cpuOf is the CPU time of servers and of this process.
func cpuOf(servers []*server) (sum time.Duration) {
	for _, s := range servers {
		sum += cpuTime(s.cmd.Process.Pid)
	}
	return sum + ownCPU()
}

// tally is a number that grows by one for each entry that goes.
func (c *client) tally() (n int64, err error) {
	d := c.dialect.(expiringDialect)
	c.out = d.tally(c.out[:0])
	err = c.exchange(1, func(reply []byte) (err error) {
		n, err = d.tallied(reply)
		return err
	})
	return n, err
}

const (
	goneTime = time.Minute          // behind the last deadline
	eachLook = 5 * time.Millisecond // after entries that go
)

// awaitGone returns when the tally was seen to be n.
func (c *client) awaitGone(n int64, until time.Time) (time.Time, error) {
	for {
		now := time.Now()
		switch t, err := c.tally(); {
		case err != nil:
			return now, err
		case t >= n:
			return time.Now(), nil
		case now.After(until):
			return now, fmt.Errorf("%d entries are still there %v after the last was due", n-t, goneTime)
		}
		time.Sleep(eachLook)
	}
}

// gets is one get after the other, on a key that lives.
type gets struct {
	client *client
	began  time.Time
	ends   []time.Duration // since began; the first is the start of the first one
	over   atomic.Bool
	done   chan error
}

func startGets(ctx context.Context, s *server) (*gets, error) {
	c, err := dialClient(ctx, s)
	if err != nil {
		return nil, err
	}
	g := &gets{client: c, began: time.Now(), ends: make([]time.Duration, 1, 1<<20), done: make(chan error, 1)}
	go func() { g.done <- g.run() }()
	return g, nil
}

func (g *gets) run() error {
	for !g.over.Load() {
		if err := g.client.batch(opGet, 1, nil); err != nil {
			return err
		}
		g.ends = append(g.ends, time.Since(g.began))
	}
	return nil
}

func (g *gets) stop() error {
	g.over.Store(true)
	err := <-g.done
	_ = g.client.conn.Close()
	return err
}

// between are the gets that were under way in that time.
func (g *gets) between(from, to time.Time) latency {
	first, last := from.Sub(g.began), to.Sub(g.began)
	var took []int64
	for i, end := range g.ends[1:] {
		if end >= first && g.ends[i] <= last {
			took = append(took, int64(end-g.ends[i]))
		}
	}
	slices.Sort(took)
	return latency{len(took), quantile(took, 0.5) / 1e3, quantile(took, 0.999) / 1e3, quantile(took, 1) / 1e3}
}
