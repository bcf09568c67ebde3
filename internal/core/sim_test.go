package core_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
)

var (
	simSeeds = flag.Int("sim.seeds", 1500, "how many schedules TestSimulation runs: those of the seeds from 1 on")
	simSeed  = flag.Uint64("sim.seed", 0, "the only seed to run, with the whole trace; 0 is all")
)

// TestSimulation runs whole systems over the real machine: a server, ranks, and a network that
// delays and cuts; ranks that die, cancel, come late or disagree. After each step the auditor
// checks the properties in docs/explanation/guarantees.md. A seed is a schedule: a failure can be
// replayed from its seed.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		o := simulate(*simSeed, true)
		t.Logf("seed %d, trace %016x, %d steps\n%s", *simSeed, o.hash, o.steps, strings.Join(o.lines, "\n"))
		if o.broken != nil {
			t.Fatal(o.broken)
		}
		return
	}
	var mu sync.Mutex
	var first uint64 // the first that fails
	seen := tally{}
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for seed := uint64(i + 1); seed <= uint64(*simSeeds); seed += uint64(workers) {
				o := simulate(seed, false)
				mu.Lock()
				seen.add(o.tally)
				if o.broken != nil && (first == 0 || seed < first) {
					first = seed
				}
				stop := first != 0
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	if first != 0 {
		t.Fatal(report(first))
	}
	t.Logf("%d schedules: %v", *simSeeds, seen)
	if *simSeeds >= 1000 {
		seen.check(t)
	}
}

// report runs a seed again, with its trace.
func report(seed uint64) string {
	const tail = 60
	o := simulate(seed, true)
	if o.broken == nil {
		return fmt.Sprintf("seed %d failed, but not when it was run again: it is not a schedule", seed)
	}
	lines := o.lines[max(0, len(o.lines)-tail):]
	return fmt.Sprintf("%v\nseed %d, step %d; the end of its trace:\n%s\nreplay: go test ./internal/core -run '^TestSimulation$' -v -sim.seed %d",
		o.broken, seed, o.steps, strings.Join(lines, "\n"), seed)
}

// TestSimulationReplays checks that a seed is a schedule: two runs of it, one of them traced, have
// the same trace.
func TestSimulationReplays(t *testing.T) {
	for seed := range uint64(50) {
		a, b := simulate(seed+1, false), simulate(seed+1, true)
		if a.hash != b.hash || a.steps != b.steps {
			t.Fatalf("seed %d: trace %016x of %d steps, then %016x of %d", seed+1, a.hash, a.steps, b.hash, b.steps)
		}
	}
}

// outcome is the result of one schedule.
type outcome struct {
	hash   uint64
	steps  int
	lines  []string
	tally  tally
	broken *broken
}

// broken is a property that does not hold.
type broken struct{ property, how string }

func (b *broken) Error() string { return b.property + " does not hold: " + b.how }

// breaks ends a schedule: property is one of those in the properties files, as "C1".
func breaks(property, format string, args ...any) {
	panic(&broken{property, fmt.Sprintf(format, args...)})
}

// simulate runs one schedule.
func simulate(seed uint64, verbose bool) (o outcome) {
	w := newWorld(rand.New(rand.NewPCG(seed, 0x6d7573746572)), verbose)
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *broken:
			o.broken = r
		default:
			o.broken = &broken{"N0 the machine never panics", fmt.Sprintf("%v\n%s", r, debug.Stack())}
		}
		o.hash, o.lines, o.steps, o.tally = w.trace.hash, w.trace.lines, w.tally["steps"], w.tally
	}()
	w.begin()
	w.run()
	w.shutdown()
	return o
}
