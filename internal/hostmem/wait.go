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
// decide. ring of the same word wakes it.
func (m *Memory) wait(ctx context.Context, sleepers int, ready func() bool) {
	if m.sim != nil {
		for !ready() && !m.sim.expired() {
		}
		return
	}
	start := time.Now()
	for time.Since(start) < spinTime {
		if ready() {
			return
		}
		yield()
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
		bell := m.bell()
		left := time.Until(end)
		if ready() || m.isOff() || ctx.Err() != nil || left <= 0 {
			return
		}
		m.sleep(bell, min(left, nap))
	}
}

// ring wakes the ranks that wait, if there are any: system calls are what costs time here. A rank
// that ended while it slept stays counted, which costs the others a system call for each
// record.
func (m *Memory) ring(sleepers int) {
	if m.load(sleepers) > 0 && m.sim == nil {
		m.wake()
	}
}
