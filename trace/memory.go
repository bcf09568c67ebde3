package trace

import (
	"context"
	"maps"
	"sync"
	"time"
)

// Total is what a Memory knows of one operation.
type Total struct {
	Count  int64
	Failed int64         // of Count, those with an error
	Time   time.Duration // the sum of their durations
	Waited time.Duration // of it, for others
	Bytes  int64
}

// Seconds is the sum of the durations in seconds.
func (t Total) Seconds() float64 { return t.Time.Seconds() }

// Mean is the average duration; 0 of none.
func (t Total) Mean() time.Duration {
	if t.Count == 0 {
		return 0
	}
	return t.Time / time.Duration(t.Count)
}

// Memory is a Sink that counts, and keeps the last events. The zero value is ready, and keeps counts alone. It may be used by many
// goroutines at once; in steady state it allocates nothing.
type Memory struct {
	// Keep is how many of the last events are kept; set it before the first one. What they hold, an Err above all, is kept alive by them.
	Keep int

	mu     sync.Mutex // protects the fields below
	totals map[string]Total
	last   []Event // a ring: the oldest is at next, once it is full
	next   int
}

// Record implements Sink.
func (m *Memory) Record(_ context.Context, e Event) {
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

// keep puts e into the ring. Called with mu.
func (m *Memory) keep(e Event) {
	switch {
	case m.Keep <= 0:
	case len(m.last) < m.Keep:
		m.last = append(m.last, e)
	default:
		m.last[m.next] = e
		m.next = (m.next + 1) % len(m.last)
	}
}

// Total is what is known of op so far.
func (m *Memory) Total(op string) Total {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.totals[op]
}

// Totals is what is known of all operations so far, by their names. The map is the caller's.
func (m *Memory) Totals() map[string]Total {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.totals)
}

// Events are the last ones, at most Keep of them, oldest first. The slice is the caller's.
func (m *Memory) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	es := make([]Event, 0, len(m.last))
	es = append(es, m.last[m.next:]...)
	return append(es, m.last[:m.next]...)
}

// Reset forgets everything.
func (m *Memory) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.totals, m.last, m.next = nil, nil, 0
}
