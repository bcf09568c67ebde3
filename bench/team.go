package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Events of ranks are named VERB@WHO.
const (
	atWhom        = "@"
	chainedSuffix = ", chained" // of a verb whose calls follow each other without a barrier
)

func isChained(way string) bool { return strings.Contains(way, chainedSuffix) }

// party can run a way several times on command.
type party interface {
	// turn returns a lap for each process, or for the first rank alone, and the CPU time of processes
	// that have ended since.
	turn(ctx context.Context, way string, bytes, count int) (laps []lap, ended time.Duration, err error)
}

// lap is what a process reports of a turn.
type lap struct {
	Took  []float64 // µs, of each call
	CPU   float64   // µs, of all calls and the overhead around them
	Alloc float64   // bytes that a rank allocated in all calls, if known
}

// merged combines the laps of several ranks into one: the time of a call is that of the slowest rank,
// or of the first rank if calls are chained.
func merged(laps []lap, chained bool) (all lap) {
	for i, l := range laps {
		all.CPU += l.CPU
		all.Alloc = max(all.Alloc, l.Alloc)
		if i == 0 {
			all.Took = slices.Clone(l.Took)
			continue
		}
		for n, t := range l.Took {
			if !chained {
				all.Took[n] = max(all.Took[n], t)
			}
		}
	}
	return all
}

// partyEvent returns the event of one way of who, with the figures of the merged lap; if byRank is
// set, with those of the first lap, and of the slowest rank's.
func partyEvent(who party, way string, bytes int, byRank bool, name ...string) *event {
	return &event{key: wayKey(way, bytes), name: name, turn: func(ctx context.Context, count int) (figures, time.Duration, error) {
		laps, ended, err := who.turn(ctx, way, bytes, count)
		if err != nil {
			return nil, 0, err
		}
		all := merged(laps, byRank || isChained(way))
		f := figures{p50Column: median(all.Took), "p90 µs": quantile(slices.Sorted(slices.Values(all.Took)), 0.9), "mean µs": mean(all.Took)}
		if byRank {
			f["slowest rank"] = slices.Max(each(laps, func(l lap) float64 { return median(l.Took) }))
		}
		for column, v := range map[string]float64{"CPU µs": all.CPU, "alloc B": all.Alloc} {
			if v > 0 {
				f[column] = v / float64(count)
			}
		}
		return f, ended, nil
	}}
}

func wayKey(way string, bytes int) string { return fmt.Sprint(way, " ", bytes) }

// team is a party of processes that read their turns as lines.
type team struct {
	cancel context.CancelFunc
	ranks  []*process
}

func (t *team) pids() (pids []int) {
	for _, p := range t.ranks {
		pids = append(pids, p.Pid())
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
		_ = p.job.Input().Close()
	}
	for _, p := range t.ranks {
		p.stop()
	}
	t.cancel()
}

// startTeam starts size processes, one after the other. removed is called after their end.
func startTeam(ctx context.Context, size int, removed func(), rank func(ctx context.Context, rank int) (*process, error)) (*team, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &team{cancel: func() { cancel(); removed() }}
	for i := range size {
		p, err := rank(ctx, i)
		if err != nil {
			t.cancel()
			return nil, err
		}
		t.ranks = append(t.ranks, p)
	}
	return t, nil
}

func nothingToRemove() {}

// startRanks starts size ranks of this program, a process each.
func startRanks(ctx context.Context, size int, dir string) (*team, error) {
	addrs := ""
	return startTeam(ctx, size, nothingToRemove, func(ctx context.Context, rank int) (*process, error) {
		args := []string{strconv.Itoa(rank), strconv.Itoa(size), dir}
		p, err := spawn(ctx, "rank", append(args, strings.Fields(addrs)...)...)
		if err == nil && rank == 0 {
			addrs, err = p.line()
		}
		return p, err
	})
}
