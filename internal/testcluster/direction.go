package testcluster

import (
	"sync"
	"time"
)

// Direction is one direction of a Proxy. Its faults apply to all connections, open and new, and to
// data that is in flight already.
type Direction struct {
	mu      sync.Mutex // protects the fields below
	faults  faults
	changed chan struct{} // closed at each change
}

// faults are the faults of a Direction; the zero value is none.
type faults struct {
	delay            time.Duration
	blackhole, stall bool
	throttle         int // bytes per second
}

func newDirection() *Direction {
	return &Direction{changed: make(chan struct{})}
}

// Delay adds d to the time that bytes take, at most 32 KiB at a time.
func (w *Direction) Delay(d time.Duration) { w.set(func(f *faults) { f.delay = d }) }

// Blackhole sets whether bytes are lost, and with them the end of a connection; connections stay
// open. A connection that has lost anything carries nothing in this direction ever again, as TCP
// delivers no gaps; the others continue afterwards.
//
// New connections are still made: a proxy cannot keep the kernel from answering. Use Proxy.Refuse
// where that matters.
func (w *Direction) Blackhole(on bool) { w.set(func(f *faults) { f.blackhole = on }) }

// Stall sets whether bytes wait: a wire that is cut and repaired, where TCP sends again what was
// lost. When the buffers are full, the sender blocks.
func (w *Direction) Stall(on bool) { w.set(func(f *faults) { f.stall = on }) }

// Throttle limits each connection to a rate; 0 is no limit.
func (w *Direction) Throttle(bytesPerSecond int) {
	w.set(func(f *faults) { f.throttle = bytesPerSecond })
}

func (w *Direction) set(change func(*faults)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.faults)
	close(w.changed)
	w.changed = make(chan struct{})
}

// current returns the faults, and a channel that is closed when they change.
func (w *Direction) current() (faults, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults, w.changed
}

// piece returns how many of n bytes are sent at once: those of a hundredth of a second.
func (f faults) piece(n int) int {
	if f.throttle == 0 {
		return n
	}
	return min(n, max(1, f.throttle/100))
}

// catchUp is the most time that a throttled direction makes up for timers that were late: a few turns of
// other processes on a busy machine.
const catchUp = 50 * time.Millisecond

// next returns when the next piece may be sent, if one of n bytes that could be sent at free is sent
// now.
func (f faults) next(free time.Time, n int) time.Time {
	if f.throttle == 0 {
		return time.Time{}
	}
	if late := time.Now().Add(-catchUp); free.Before(late) {
		free = late
	}
	return free.Add(time.Duration(n) * time.Second / time.Duration(f.throttle))
}
