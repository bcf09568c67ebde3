package core_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-pg/muster/internal/core"
)

// world is one schedule: a server, the processes that use it, and the network between them, in one
// goroutine with simulated time. All randomness comes from rng.
type world struct {
	rng    *rand.Rand
	now    core.Time
	events events
	turn   uint64
	trace  trace

	server
	audit    *audit
	promises promises
	tally    tally
	procs    []*proc
	plans    []*plan
	odds     odds
	ending   bool
	popped   map[string]bool // values of queues that clients received
}

func newWorld(rng *rand.Rand, verbose bool) *world {
	w := &world{rng: rng, tally: tally{}, popped: map[string]bool{}}
	w.m, w.conns = core.New(core.Limits{}), map[uint64]*conn{}
	w.promises.outcomes, w.promises.leases = map[outcomeKey][]byte{}, map[uint64]core.Time{}
	w.trace.verbose = verbose
	w.trace.hash = 14695981039346656037
	w.audit = newAudit(w)
	return w
}

// chance returns true with probability p.
func (w *world) chance(p float64) bool { return p > 0 && w.rng.Float64() < p }

// between returns a random time in [low, high).
func (w *world) between(low, high time.Duration) time.Duration {
	return low + time.Duration(w.rng.Int64N(int64(high-low)))
}

// upTo returns a random number in [0, n).
func (w *world) upTo(n int) int { return w.rng.IntN(n) }

// after calls do when d has passed.
func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }

func (w *world) at(at core.Time, do func()) {
	w.turn++
	heap.Push(&w.events, event{at, w.turn, do})
}

// run makes the events happen until none is left.
func (w *world) run() {
	looks := 0 // in a row, when nothing else is left to do
	for range 200_000 {
		at, armed := w.m.Next()
		at += w.lag + w.tardy
		armed = armed && !w.down
		if looks++; len(w.events) > 0 || !w.m.OnlyLooks() {
			looks = 0
		}
		switch {
		case looks > 1000: // ranks wait for each other in operations without a deadline
			return
		case len(w.events) > 0 && (!armed || w.events[0].at < at):
			e := heap.Pop(&w.events).(event)
			w.now = e.at
			e.do()
		case armed:
			w.now = max(w.now, at)
			w.tick()
			if w.tardy = 0; w.chance(w.odds.tardy) {
				w.tardy = w.between(0, 3*time.Millisecond)
			}
		default:
			return
		}
	}
	breaks("N1 a schedule ends", "there is no end")
}

// trace is what happened: always as a hash, and as text if it is verbose.
type trace struct {
	hash    uint64
	verbose bool
	lines   []string
}

// mix adds numbers to the hash (FNV-1a, by words).
func (t *trace) mix(ns ...uint64) {
	for _, n := range ns {
		t.hash = (t.hash ^ n) * 1099511628211
	}
}

func (t *trace) mixBytes(b []byte) {
	for _, c := range b {
		t.hash = (t.hash ^ uint64(c)) * 1099511628211
	}
}

func (t *trace) note(w *world, format string, args ...any) {
	if t.verbose {
		t.lines = append(t.lines, fmt.Sprintf("%11.3fms ", float64(w.now)/1e6)+fmt.Sprintf(format, args...))
	}
}

// event happens at a time; events of one time happen in the order in which they were planned.
type event struct {
	at   core.Time
	turn uint64
	do   func()
}

// events is a heap of them.
type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].turn < h[j].turn
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(e any)   { *h = append(*h, e.(event)) }

func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = event{} // lets its closure be freed
	*h = (*h)[:last]
	return e
}
