package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// figures are measured values, by the columns of a report.
type figures = map[string]float64

// The columns that all events have, and that determine which rounds count.
const (
	p50Column    = "p50 µs"
	othersColumn = "others %" // the share of the CPU time that other processes used
)

// event is one row of a report: it has one turn in each round.
type event struct {
	key   string           // unique: others are compared with it
	name  []string         // of its row
	bases map[string]ratio // columns that compare it with other events
	timed bool             // a turn takes a fixed time, not a number of calls

	// turn measures count calls. It returns the CPU time of processes that have ended since, too.
	turn func(ctx context.Context, count int) (f figures, ended time.Duration, err error)

	count  int
	rounds []figures
}

// ratio compares a figure with that of another event, in the same rounds.
type ratio struct{ column, key string }

// turns are events that take turns. Its flags are those of most commands.
type turns struct {
	rounds int
	slice  time.Duration
	asJSON bool

	events []*event
	pids   []int // the processes that are measured, in addition to this one
}

func (t *turns) flags(f *flag.FlagSet, rounds int, slice time.Duration) {
	f.IntVar(&t.rounds, "rounds", rounds, "rounds; each row has one turn in each")
	f.DurationVar(&t.slice, "slice", slice, "length of a turn")
	f.BoolVar(&t.asJSON, "json", false, "print JSON")
}

// most is the maximum number of calls of a turn.
const most = 2000

// play runs every event once in each round, after a turn that determines how many calls fill a
// slice. Rounds run forwards and backwards in turn, so that no event always follows the same one.
func (t *turns) play(ctx context.Context) error {
	for _, e := range t.events {
		if e.timed {
			continue
		}
		f, err := t.take(ctx, e, 2)
		if err != nil {
			return err
		}
		e.count = int(min(max(micros(t.slice)/max(f[p50Column], 1), 3), most))
	}
	order := slices.Clone(t.events)
	for range t.rounds {
		for _, e := range order {
			f, err := t.take(ctx, e, e.count)
			if err != nil {
				return err
			}
			e.rounds = append(e.rounds, f)
		}
		slices.Reverse(order)
	}
	return nil
}

// take runs a turn of e.
func (t *turns) take(ctx context.Context, e *event, count int) (figures, error) {
	ours := func() (sum time.Duration) {
		for _, pid := range append([]int{os.Getpid()}, t.pids...) {
			sum += cpuTime(pid)
		}
		return sum
	}
	before, w := ours(), startWatch()
	f, ended, err := e.turn(ctx, count)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", e.name, err)
	}
	f[othersColumn] = 100 * w.others(ours()-before+ended)
	return f, nil
}

// run plays, and writes a report with a row for each event.
func (t *turns) run(ctx context.Context, rep *report, out io.Writer) error {
	rep.note("medians of the calmer half of %d rounds of %v", t.rounds, t.slice)
	if err := t.play(ctx); err != nil {
		return err
	}
	t.addRows(rep)
	return rep.write(out, t.asJSON)
}

// addRows adds a row for each event. Only values of the same rounds are compared: of the calmer half
// of the rounds of both events.
func (t *turns) addRows(rep *report) {
	byKey := map[string]*event{}
	for _, e := range t.events {
		byKey[e.key] = e
	}
	for _, e := range t.events {
		calm := calmest(slices.Clone(e.rounds), func(f figures) float64 { return f[othersColumn] })
		row := figures{}
		for column := range calm[0] {
			row[column] = medianOf(calm, func(f figures) float64 { return f[column] })
		}
		for column, r := range e.bases {
			if base := byKey[r.key]; base != nil && base != e {
				row[column] = e.over(base, r.column)
			}
		}
		rep.add(row, e.name...)
	}
}

// over returns the ratio of e's figure to base's.
func (e *event) over(base *event, column string) float64 {
	pairs := make([][2]figures, len(e.rounds))
	for i := range pairs {
		pairs[i] = [2]figures{e.rounds[i], base.rounds[i]}
	}
	pairs = calmest(pairs, func(p [2]figures) float64 { return max(p[0][othersColumn], p[1][othersColumn]) })
	return medianOf(pairs, func(p [2]figures) float64 { return p[0][column] / p[1][column] })
}
