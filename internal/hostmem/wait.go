package hostmem

import (
	"context"
	"time"
)

const (
	// spinTime is how long a rank polls before it sleeps: the event may take less time than a
	// wake-up. Between polls it yields the processor to other processes.
	spinTime = 50 * time.Microsecond
	// nap bounds a sleep. After it the rank checks whether its context has ended.
	nap = 5 * time.Millisecond
)

// wait returns when ready does, when the memory is off, when ctx has ended, or when it has taken too
// long: after maxWait, or a quarter of the time until ctx's deadline, so that the store can still
// decide. ring with the same words wakes it: sleepers is the number of the calls that sleep, and
// bell changes when they should look again.
func (m *Memory) wait(ctx context.Context, sleepers, bell int, ready func() bool) {
	start := time.Now()
	if m.poll(ready) || m.sim != nil {
		return
	}
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
		m.sleep(bell, value, min(left, nap))
	}
}

// poll returns when ready does, or after spinTime. It reports whether it was ready.
func (m *Memory) poll(ready func() bool) bool {
	if m.sim != nil {
		for !ready() {
			if m.sim.expired() {
				return false
			}
		}
		return true
	}
	for start := time.Now(); time.Since(start) < spinTime; yield() {
		if ready() {
			return true
		}
	}
	return false
}

// ring wakes the ranks that wait, if there are any: system calls are what costs time here. A rank
// that ended while it slept stays counted, which costs the others a system call for each
// record.
func (m *Memory) ring(sleepers, bell int) {
	if m.load(sleepers) > 0 && m.sim == nil {
		m.wake(bell)
	}
}
