package trace

import (
	"context"
	"sync"
	"time"
)

// Total is the counts of one operation.
type Total struct {
	Count  int64
	Failed int64         // the part of Count that returned an error
	Time   time.Duration // sum of the durations
	Waited time.Duration // the part of Time spent waiting for other ranks
	Bytes  int64
}

// Counter is a Sink that counts operations, and keeps the last events. The zero value is ready to
// use, and keeps no events. It is safe for concurrent use, and does not allocate for an operation
// that it has already counted.
type Counter struct {
	// Keep is the number of last events to keep. Set it before the first event. Events keep their
	// Err alive.
	Keep int

	mu     sync.Mutex // protects the fields below
	totals map[string]Total
	last   []Event // a ring; once it is full, the oldest is at next
	next   int
}

// Record implements Sink.
func (m *Counter) Record(_ context.Context, e Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.totals == nil {
		m.totals = map[string]Total{}
	}
	t := m.totals[e.Op]
	t.Count++
	if e.Err != nil {
		t.Failed++
	}
	t.Time += e.Duration()
	t.Waited += e.Waited
	t.Bytes += e.Bytes
	m.totals[e.Op] = t
	m.keep(e)
}

// keep adds e to the ring. m.mu must be held.
func (m *Counter) keep(e Event) {
	switch {
	case m.Keep <= 0:
	case len(m.last) < m.Keep:
		m.last = append(m.last, e)
	default:
		m.last[m.next] = e
		m.next = (m.next + 1) % len(m.last)
	}
}

// Total returns the counts of op.
func (m *Counter) Total(op string) Total {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.totals[op]
}

// Events returns the last events, at most Keep, the oldest first. The caller owns the slice.
func (m *Counter) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	es := make([]Event, 0, len(m.last))
	es = append(es, m.last[m.next:]...)
	return append(es, m.last[:m.next]...)
}
