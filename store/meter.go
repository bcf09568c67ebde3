package store

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/wire"
)

// meter counts what a Memory and its connections do, for Status. Counting costs a few additions per
// batch of requests; durations are measured only while the status is queried.
type meter struct {
	in, out atomic.Uint64 // bytes from and to peers

	conns, arrived, refused, slow atomic.Int64 // connections: open, accepted, refused, dropped because the peer did not read

	loop atomic.Pointer[string] // Loop.Kind of the server's loops; nil: none

	lastQuery atomic.Int64 // when the status was last queried, since start; 0: never, or long ago
	start     time.Time

	// protected by the Memory's mu
	ops      [64]int64
	latency  histogram // time until the reply
	answered int       // requests of the current batch that were answered

	mu     sync.Mutex // protects synced
	synced histogram  // of writes of the log
}

// histogram counts durations.
type histogram struct {
	counts [256]int64 // by bucketOf
	sum    time.Duration
}

func (t *histogram) add(took time.Duration, n int) {
	t.counts[bucketOf(took)] += int64(n)
	t.sum += took * time.Duration(n)
}

func (t *histogram) buckets() (list []wire.Bucket) {
	for i, n := range t.counts {
		if n > 0 {
			list = append(list, wire.Bucket{UpTo: bucketEnd(i), Count: n})
		}
	}
	return list
}

// samplingTime is how long durations are measured after a query of the status: longer than between
// queries once a minute.
const samplingTime = 90 * time.Second

// begin returns the start time for end; zero if durations are not measured.
func (m *meter) begin() time.Time {
	if m.lastQuery.Load() == 0 {
		return time.Time{}
	}
	return time.Now()
}

// end counts n requests that were answered together. The caller holds the Memory's mu.
func (m *meter) end(began time.Time, n int) {
	if began.IsZero() || n == 0 {
		return
	}
	m.latency.add(time.Since(began), n)
	if began.Sub(m.start) > time.Duration(m.lastQuery.Load())+samplingTime {
		m.lastQuery.Store(0)
	}
}

// status puts the counts into s. The caller holds the Memory's mu.
func (m *meter) status(s *wire.ServerStatus) {
	if m.start.IsZero() {
		m.start = time.Now()
	}
	m.lastQuery.Store(max(1, int64(time.Since(m.start))))
	s.In, s.Out = m.in.Load(), m.out.Load()
	last := len(m.ops)
	for last > 0 && m.ops[last-1] == 0 {
		last--
	}
	s.Ops = append([]int64{}, m.ops[:last]...)
	s.Latency, s.LatencySum = m.latency.buckets(), m.latency.sum
	s.Conns, s.Accepted, s.Refused, s.Dropped = m.conns.Load(), m.arrived.Load(), m.refused.Load(), m.slow.Load()
	if kind := m.loop.Load(); kind != nil {
		s.Loop = *kind
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Syncs, s.SyncSum = m.synced.buckets(), m.synced.sum
}

// wrote counts a write of the log.
func (m *meter) wrote(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced.add(took, 1)
}

// bucketOf returns the bucket of d: there are four per power of two, so that a quantile is accurate
// to a fifth.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 4 {
		return int(n)
	}
	exp := bits.Len64(n) - 3
	return exp*4 + int(n>>exp)
}

// bucketEnd returns the longest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < 8 {
		return time.Duration(i)
	}
	exp := i/4 - 1
	return time.Duration(uint64(i%4+5)<<exp - 1)
}

// OpName returns the name of ServerStatus.Ops[op].
func OpName(op int) string { return wire.Op(op).String() }
