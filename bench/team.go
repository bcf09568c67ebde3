package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// party can run a way several times on command, and report how long each call took.
type party interface {
	// turn returns a lap for each rank, or for the first rank alone, and the CPU time of processes
	// that have ended since.
	turn(ctx context.Context, way string, bytes, count int) (laps []lap, ended time.Duration, err error)
	// pids returns the processes that still run.
	pids() []int
}

// team is a party of processes that read their turns as lines.
type team struct {
	cancel context.CancelFunc
	ranks  []*process
}

func (t *team) pids() (pids []int) {
	for _, p := range t.ranks {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

// turn sends the same command to all processes. The first error ends all, since the others may wait
// for the process that failed.
func (t *team) turn(_ context.Context, way string, bytes, count int) ([]lap, time.Duration, error) {
	laps := make([]lap, len(t.ranks))
	done := make(chan error)
	for i, p := range t.ranks {
		go func() {
			line, err := p.ask(fmt.Sprintf("%s;%d;%d", way, bytes, count))
			if err == nil {
				err = json.Unmarshal([]byte(line), &laps[i])
			}
			done <- err
		}()
	}
	var all error
	for range t.ranks {
		if err := <-done; err != nil {
			all = errors.Join(all, err)
			time.AfterFunc(time.Second, t.cancel) // time for the others to print their errors
		}
	}
	return laps, 0, all
}

// stop ends all processes: each ends by itself when its stdin ends.
func (t *team) stop() {
	for _, p := range t.ranks {
		_ = p.in.Close()
	}
	for _, p := range t.ranks {
		p.stop()
	}
	t.cancel()
}

// event is one way of one party at one size, and the results of its turns.
type event struct {
	who   party
	way   string
	bytes int
	name  []string          // of its row
	bases map[string]string // columns, and the ways of the same size to compare with

	count  int
	rounds []turned
}

// turned is the result of one turn.
type turned struct {
	p50, p90 float64 // µs, on rank 0
	slowest  float64 // p50 of the slowest rank
	mean     float64 // µs, on rank 0
	cpu      float64 // µs of all ranks together, per call; 0 if unknown
	alloc    float64 // bytes allocated per call, on the rank that allocates most; 0 if unknown
	others   float64
}

func (e *event) key() string { return fmt.Sprint(e.way, e.bytes) }

// take runs a turn of e.
func (e *event) take(ctx context.Context, all []party, count int) (turned, error) {
	pids := []int{os.Getpid()}
	for _, c := range all {
		pids = append(pids, c.pids()...)
	}
	ours := func() (sum time.Duration) {
		for _, pid := range pids {
			sum += cpuTime(pid)
		}
		return sum
	}
	before, w := ours(), startWatch()
	laps, ended, err := e.who.turn(ctx, e.way, e.bytes, count)
	if err != nil {
		return turned{}, fmt.Errorf("%v: %w", e.name, err)
	}
	x := turned{others: w.others(ours() - before + ended)}
	for i, l := range laps {
		x.cpu += l.CPU / float64(count)
		p50 := median(l.Took)
		x.slowest = max(x.slowest, p50)
		x.alloc = max(x.alloc, l.Alloc/float64(count))
		if i == 0 {
			x.p50, x.p90, x.mean = p50, quantile(sorted(l.Took), 0.9), mean(l.Took)
		}
	}
	return x, nil
}

// games are events that take turns.
type games struct {
	events []*event
	slice  time.Duration
	rounds int
}

// most is the maximum number of calls of a turn.
const most = 2000

// play runs every event once in each round, after a turn that determines how many calls fill a
// slice.
func (g *games) play(ctx context.Context) error {
	var all []party
	for _, e := range g.events {
		all = append(all, e.who)
	}
	all = distinct(all)
	for _, e := range g.events {
		x, err := e.take(ctx, all, 2)
		if err != nil {
			return err
		}
		e.count = int(min(max(micros(g.slice)/max(x.p50, 1), 3), most))
	}
	for range g.rounds {
		for _, e := range g.events {
			x, err := e.take(ctx, all, e.count)
			if err != nil {
				return err
			}
			e.rounds = append(e.rounds, x)
		}
	}
	return nil
}

func distinct(cs []party) (found []party) {
	seen := map[party]bool{}
	for _, c := range cs {
		if !seen[c] {
			seen[c] = true
			found = append(found, c)
		}
	}
	return found
}

// addRows adds a row for each event. Only values of the same rounds are compared: of the calmer half
// of the rounds of both events.
func (g *games) addRows(rep *report) {
	byKey := map[string]*event{}
	for _, e := range g.events {
		byKey[e.key()] = e
	}
	for _, e := range g.events {
		figures := map[string]float64{
			"p50 µs": e.calm(func(x turned) float64 { return x.p50 }), "p90 µs": e.calm(func(x turned) float64 { return x.p90 }),
			"slowest rank": e.calm(func(x turned) float64 { return x.slowest }), "others %": 100 * e.calm(func(x turned) float64 { return x.others }),
		}
		for column, f := range map[string]func(turned) float64{
			"CPU µs":  func(x turned) float64 { return x.cpu },
			"mean µs": func(x turned) float64 { return x.mean },
			"alloc B": func(x turned) float64 { return x.alloc },
		} {
			if v := e.calm(f); v > 0 {
				figures[column] = v
			}
		}
		for column, way := range e.bases {
			if base := byKey[(&event{way: way, bytes: e.bytes}).key()]; base != nil && base != e {
				figures[column] = e.over(base)
			}
		}
		rep.add(figures, e.name...)
	}
}

// calm returns the median of a figure over the calmer half of the turns.
func (e *event) calm(f func(turned) float64) float64 {
	return medianOf(calmest(slices.Clone(e.rounds), func(x turned) float64 { return x.others }), f)
}

// over returns the ratio of e's time to base's.
func (e *event) over(base *event) float64 {
	type pair struct{ e, base turned }
	pairs := make([]pair, len(e.rounds))
	for i := range pairs {
		pairs[i] = pair{e.rounds[i], base.rounds[i]}
	}
	pairs = calmest(pairs, func(p pair) float64 { return max(p.e.others, p.base.others) })
	return medianOf(pairs, func(p pair) float64 { return p.e.p50 / p.base.p50 })
}
