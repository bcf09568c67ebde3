package testcluster

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	splitGap = 100 * time.Microsecond // between pieces, so that a reader sees them apart
	catchUp  = 10 * time.Millisecond  // how much a throttled way makes up for late timers
)

// Way is one direction through a Proxy. Its faults hold for all connections, open and
// new; what is under way already feels a change too.
type Way struct {
	mu      sync.Mutex // protects the fields below
	faults  faults
	chance  *rand.Rand
	changed chan struct{} // closed at each change
}

// faults is what is wrong with a way; the zero value is nothing.
type faults struct {
	delay, jitter    time.Duration
	blackhole, stall bool
	throttle, split  int
}

func newWay() *Way {
	return &Way{changed: make(chan struct{}), chance: rand.New(rand.NewPCG(0, 0))}
}

// Delay adds d to the time that bytes take. Order and throughput stay: bytes follow
// each other at the pace at which they were sent.
func (w *Way) Delay(d time.Duration) { w.set(func(f *faults) { f.delay = d }) }

// Jitter adds up to most, drawn for each chunk from the seed. Order stays, so that
// what follows a late chunk is late with it.
func (w *Way) Jitter(most time.Duration, seed uint64) {
	w.set(func(f *faults) {
		f.jitter = most
		w.chance = rand.New(rand.NewPCG(seed, 0))
	})
}

// Blackhole says whether bytes vanish, and with them the news that a connection has
// ended; connections stay open. One that has lost anything carries nothing in this
// direction ever again, as TCP passes no gap on; the others go on afterwards.
//
// New connections are still made: proxies cannot keep a kernel from answering. Add
// Proxy.Refuse where that matters.
func (w *Way) Blackhole(on bool) { w.set(func(f *faults) { f.blackhole = on }) }

// Stall says whether bytes wait: a wire that is cut and mended, where TCP sends again
// what was lost. When the buffers between are full, the sender is held up.
func (w *Way) Stall(on bool) { w.set(func(f *faults) { f.stall = on }) }

// Throttle lets through so many bytes a second on each connection; 0 is no limit.
func (w *Way) Throttle(bytesPerSecond int) {
	w.set(func(f *faults) { f.throttle = bytesPerSecond })
}

// Split delivers pieces of at most n bytes, a tenth of a millisecond apart; 0 is no
// limit. A reader that is slower than that still gets several at once.
func (w *Way) Split(n int) { w.set(func(f *faults) { f.split = n }) }

func (w *Way) set(change func(*faults)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.faults)
	close(w.changed)
	w.changed = make(chan struct{})
}

// now returns the faults, and a channel that is closed when they change.
func (w *Way) now() (faults, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults, w.changed
}

// draw returns the jitter of a chunk.
func (w *Way) draw() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faults.jitter <= 0 {
		return 0
	}
	return time.Duration(w.chance.Int64N(int64(w.faults.jitter)))
}

// piece returns how many of n bytes go out at once.
func (f faults) piece(n int) int {
	if f.throttle > 0 {
		n = min(n, max(1, f.throttle/100)) // a hundredth of a second at a time
	}
	if f.split > 0 {
		n = min(n, f.split)
	}
	return n
}

// free returns when the next piece may go out, if one of n bytes goes out now and
// could have gone at due.
func (f faults) free(due, now time.Time, n int) time.Time {
	var next time.Time
	if f.throttle > 0 {
		if late := now.Add(-catchUp); due.Before(late) {
			due = late
		}
		next = due.Add(time.Duration(n) * time.Second / time.Duration(f.throttle))
	}
	if gap := now.Add(splitGap); f.split > 0 && next.Before(gap) {
		next = gap
	}
	return next
}
