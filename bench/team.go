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

// party is whoever can be told to do something so often, and tells how long each time took.
type party interface {
	// turn returns a lap for each rank, or for the first alone, and the CPU time of processes that
	// have ended since.
	turn(ctx context.Context, way string, bytes, count int) (laps []lap, ended time.Duration, err error)
	// pids are its processes that live on.
	pids() []int
}

// team is a party of processes that are told their turns by lines.
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

// turn tells all the same. The first error ends all, for the others may wait for who has it.
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
			time.AfterFunc(time.Second, t.cancel) // the others may tell more
		}
	}
	return laps, 0, all
}

// stop ends all, which end by themselves when nothing is left to be told.
func (t *team) stop() {
	for _, p := range t.ranks {
		_ = p.in.Close()
	}
	for _, p := range t.ranks {
		p.stop()
	}
	t.cancel()
}

// event is one way of one party at one size, and what its turns came to.
type event struct {
	who   party
	way   string
	bytes int
	name  []string          // of its row
	bases map[string]string // columns, and the ways of the same size that it is compared with there

	count  int
	rounds []turned
}

// turned is one turn.
type turned struct {
	p50, p90 float64 // µs, on the first rank
	slowest  float64 // p50 of the slowest rank
	mean     float64 // µs, on the first rank
	cpu      float64 // µs of all ranks together, per call; 0: unknown
	alloc    float64 // bytes that a rank allocates, per call, where most are; 0: unknown
	others   float64
}

func (e *event) key() string { return fmt.Sprint(e.way, e.bytes) }

// take has e's turn.
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

// games are events in turns.
type games struct {
	events []*event
	slice  time.Duration
	rounds int
}

// most bounds the calls of a turn.
const most = 2000

// play has every event once in each round, after a turn that finds out how often is enough for a
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

// tell adds a row for each event. What is compared was measured in the same rounds: in the calmer
// half of those of both.
func (g *games) tell(rep *report) {
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

// calm is the median of a figure of the calmer half of the turns.
func (e *event) calm(f func(turned) float64) float64 {
	return medianOf(calmest(slices.Clone(e.rounds), func(x turned) float64 { return x.others }), f)
}

// over is how many times as long as base e takes.
func (e *event) over(base *event) float64 {
	type pair struct{ e, base turned }
	pairs := make([]pair, len(e.rounds))
	for i := range pairs {
		pairs[i] = pair{e.rounds[i], base.rounds[i]}
	}
	pairs = calmest(pairs, func(p pair) float64 { return max(p.e.others, p.base.others) })
	return medianOf(pairs, func(p pair) float64 { return p.e.p50 / p.base.p50 })
}
