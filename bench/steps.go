package main

import (
	"context"
	_ "embed"
	"flag"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A scheduler sends an object to the workers of its host in each step, as an inference engine does
// before each pass of its model. vLLM has a queue in shared memory for it.
const (
	byVLLM    = "vLLM's MessageQueue"
	stepVerb  = "step"
	stepGap   = time.Millisecond // from the end of a send to the next one
	stepCount = 300              // of a turn
)

//go:embed python/steps.py
var stepsScript string

type stepsOptions struct {
	turns
	workers, sizes string
	python         string
}

func runSteps(ctx context.Context, args []string, out io.Writer) error {
	var o stepsOptions
	f := flag.NewFlagSet("steps", flag.ContinueOnError)
	f.StringVar(&o.workers, "n", "2,4,8", "numbers of workers")
	f.StringVar(&o.sizes, "size", "1024,65536", "sizes of the object in bytes")
	f.StringVar(&o.python, "python", "python3", "measure vLLM too, if this interpreter has it; empty: do not")
	f.IntVar(&o.rounds, "rounds", 9, "rounds; each row has one turn of 300 steps in each")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	workers, err := parseNumbers("-n", o.workers, 1, 63)
	if err != nil {
		return err
	}
	sizes, err := parseNumbers("-size", o.sizes, 1, 1<<20)
	if err != nil {
		return err
	}
	rep := newReport("steps", p50Column, "p90 µs", "CPU µs", "p50 ÷ vLLM", othersColumn)
	rep.note("one object to all workers each %v: from the call of the send until the last worker has it; CPU of all processes for a step", stepGap)
	rep.note("medians of the calmer half of %d rounds of %d steps", o.rounds, stepCount)
	if o.python != "" && !hasVLLM(ctx, o.python, rep) {
		o.python = ""
	}
	for _, n := range workers {
		if err := o.measure(ctx, n, sizes, rep); err != nil {
			return err
		}
	}
	return rep.write(out, o.asJSON)
}

// measure runs a scheduler with n workers, and those of vLLM by turns.
func (o *stepsOptions) measure(ctx context.Context, n int, sizes []int, rep *report) error {
	ranks, err := startRanks(ctx, n+1, 1, "")
	if err != nil {
		return err
	}
	defer ranks.stop()
	t := o.turns
	t.pids = ranks.pids()
	var vllm *team
	if o.python != "" {
		if vllm, err = spawnPython(ctx, o.python, stepsScript, n+1); err != nil {
			return err
		}
		defer vllm.stop()
		t.pids = append(t.pids, vllm.pids()...)
	}
	for _, size := range sizes {
		name := func(by string) []string { return []string{strconv.Itoa(n), bytesText(size), by} }
		e := stepEvent(ranks, byGroup, size, name("muster"))
		if vllm != nil {
			e.bases = map[string]ratio{"p50 ÷ vLLM": {p50Column, wayKey(stepVerb+atWhom+byVLLM, size)}}
			t.events = append(t.events, stepEvent(vllm, byVLLM, size, name("vLLM")))
		}
		t.events = append(t.events, e)
	}
	if err := t.play(ctx); err != nil {
		return err
	}
	t.addRows(rep)
	return nil
}

// stepEvent returns the event of a team whose laps have points in time, in µs: of the first rank when
// it sends, of the others when they have received.
func stepEvent(who *team, by string, size int, name []string) *event {
	way := stepVerb + chainedSuffix + atWhom + by
	return &event{key: wayKey(stepVerb+atWhom+by, size), name: name, timed: true, turn: func(ctx context.Context, _ int) (figures, time.Duration, error) {
		laps, ended, err := who.turn(ctx, way, size, stepCount)
		if err != nil {
			return nil, 0, err
		}
		took, cpu := make([]float64, stepCount), 0.0
		for i := range took {
			for _, l := range laps[1:] {
				took[i] = max(took[i], l.Took[i]-laps[0].Took[i])
			}
		}
		for _, l := range laps {
			cpu += l.CPU
		}
		return figures{p50Column: median(took), "p90 µs": quantile(slices.Sorted(slices.Values(took)), 0.9), "CPU µs": cpu / stepCount}, ended, nil
	}}
}

// openStep prepares a step of the group.
func (r *rank) openStep(d *drill, bytes int) error {
	at := func(t time.Time) float64 { return float64(t.UnixNano()) / 1000 }
	d.stamp = func(time.Time) float64 { return at(time.Now()) }
	if r.rank == 0 {
		d.before = func() error { time.Sleep(stepGap); return nil }
		d.stamp = at
	}
	return r.openGroupVerb(d, "broadcast", byGroup, bytes)
}

// hasVLLM reports whether an interpreter can import the queue, and adds a note if not.
func hasVLLM(ctx context.Context, python string, rep *report) bool {
	out, err := exec.CommandContext(ctx, python, "-c", "from vllm.distributed.device_communicators import shm_broadcast; import vllm; print(getattr(vllm, '__version__', ''))").CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		rep.note("NO VLLM: %s cannot import it: install it (pip install vllm), or give -python: %s", python, lines[len(lines)-1])
		return false
	}
	rep.note("vLLM %s", strings.TrimSpace(string(out)))
	return true
}
