package hostmem

import (
	"context"
	"sync"
	"time"
)

// nap bounds a sleep. After it the rank checks whether its context has ended.
const nap = 5 * time.Millisecond

// wait returns when ready does, when the memory is off, when ctx has ended, or when it has taken too
// long: after maxWait, or a quarter of the time until ctx's deadline, so that the store can still
// decide. ring with the same words wakes it: sleepers is the number of the calls that sleep, and
// bell changes when they should look again.
func (m *Memory) wait(ctx context.Context, sleepers, bell int, ready func() bool) {
	if m.poll(ready) || m.sim != nil {
		return
	}
	start := time.Now()
	end := start.Add(m.limit)
	if deadline, ok := ctx.Deadline(); ok {
		if part := start.Add(deadline.Sub(start) / 4); part.Before(end) {
			end = part
		}
	}
	m.add(sleepers, 1) // before ready is asked again: ring comes after what makes it ready
	defer m.add(sleepers, ^uint64(0))
	for {
		value := m.bell(bell)
		left := time.Until(end)
		if ready() || m.isOff() || ctx.Err() != nil || left <= 0 {
			return
		}
		if bell == wordBell { // of one goroutine at a time
			m.sleep(bell, value, min(left, nap))
		} else {
			m.inbox.sleep(m, bell, value, min(left, nap))
		}
	}
}

// sleeper sleeps for all goroutines of a rank that wait for the same bell: each of them would keep a
// thread of the process.
type sleeper struct {
	mu    sync.Mutex
	value uint32        // of the bell, as the one that sleeps has found it
	woken chan struct{} // closed when it wakes; nil: none sleeps
}

// sleep is Memory.sleep. It may return early, when the sleep of another goroutine ends.
func (s *sleeper) sleep(m *Memory, bell int, value uint32, d time.Duration) {
	s.mu.Lock()
	if woken := s.woken; woken != nil {
		rung := int32(s.value-value) > 0 // #nosec G115 -- values wrap: it has rung since the caller has looked
		s.mu.Unlock()
		if !rung {
			<-woken
		}
		return
	}
	woken := make(chan struct{})
	s.value, s.woken = value, woken
	s.mu.Unlock()
	m.sleep(bell, value, d)
	s.mu.Lock()
	s.woken = nil
	s.mu.Unlock()
	close(woken)
}

// poll returns when ready does, or when the rank should sleep. It reports whether it was ready.
func (m *Memory) poll(ready func() bool) bool {
	if m.sim != nil {
		for !ready() {
			if m.sim.expired() {
				return false
			}
		}
		return true
	}
	return m.spin.Poll(ready)
}

// ring wakes the ranks that wait, if there are any: system calls are what costs time here. A rank
// that ended while it slept stays counted, which costs the others a system call for each
// record.
func (m *Memory) ring(sleepers, bell int) {
	if m.load(sleepers) > 0 && m.sim == nil {
		m.wake(bell)
	}
}
