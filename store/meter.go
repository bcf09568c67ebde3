package store

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/wire"
)

// meter counts what a Memory and the connections to it do, for Status. Counting is a few additions for a batch of requests; times are
// taken only while somebody looks.
type meter struct {
	in, out atomic.Uint64 // bytes from and to peers

	conns, arrived, refused, slow atomic.Int64 // connections: there are, have come, were turned away, were cut off

	asked atomic.Int64 // when somebody last looked, by time.Since(meterStart); 0 is never, or long ago
	start time.Time

	// protected by the Memory's mu
	ops      [64]int64
	took     times // until answers
	answered int   // requests of the batch that is carried out

	mu     sync.Mutex // protects synced
	synced times      // writes of the log
}

// times are how often something took how long.
type times struct {
	counts [256]int64 // by bucketOf
	sum    time.Duration
}

func (t *times) add(took time.Duration, n int) {
	t.counts[bucketOf(took)] += int64(n)
	t.sum += took * time.Duration(n)
}

func (t *times) buckets() (list []wire.Bucket) {
	for i, n := range t.counts {
		if n > 0 {
			list = append(list, wire.Bucket{UpTo: bucketEnd(i), Count: n})
		}
	}
	return list
}

// lookTime is for how long times are taken after somebody has looked: longer than from one look to the next, if a minute is between them.
const lookTime = 90 * time.Second

// begin is when what end is told of begins; zero if nobody looks.
func (m *meter) begin() time.Time {
	if m.asked.Load() == 0 {
		return time.Time{}
	}
	return time.Now()
}

// end counts n requests that were answered together. Called with the Memory's mu.
func (m *meter) end(began time.Time, n int) {
	if began.IsZero() || n == 0 {
		return
	}
	m.took.add(time.Since(began), n)
	if began.Sub(m.start) > time.Duration(m.asked.Load())+lookTime {
		m.asked.Store(0)
	}
}

// status puts what was counted into s. Called with the Memory's mu.
func (m *meter) status(s *wire.ServerStatus) {
	if m.start.IsZero() {
		m.start = time.Now()
	}
	m.asked.Store(max(1, int64(time.Since(m.start))))
	s.In, s.Out = m.in.Load(), m.out.Load()
	last := len(m.ops)
	for last > 0 && m.ops[last-1] == 0 {
		last--
	}
	s.Ops = append([]int64{}, m.ops[:last]...)
	s.Latency, s.LatencySum = m.took.buckets(), m.took.sum
	s.Conns, s.Accepted, s.Refused, s.Dropped = m.conns.Load(), m.arrived.Load(), m.refused.Load(), m.slow.Load()
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

// What becomes of connections is counted where there is a meter: it is nil of a relay.

func (m *meter) came() {
	if m != nil {
		m.conns.Add(1)
		m.arrived.Add(1)
	}
}

func (m *meter) went() {
	if m != nil {
		m.conns.Add(-1)
	}
}

func (m *meter) refuses() {
	if m != nil {
		m.refused.Add(1)
	}
}

func (m *meter) cuts() {
	if m != nil {
		m.slow.Add(1)
	}
}

// bucketOf is the bucket of d: four for each power of two, so that a quantile is right to a fifth.
func bucketOf(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < 4 {
		return int(n)
	}
	exp := bits.Len64(n) - 3
	return exp*4 + int(n>>exp)
}

// bucketEnd is the longest duration of a bucket.
func bucketEnd(i int) time.Duration {
	if i < 8 {
		return time.Duration(i)
	}
	exp := i/4 - 1
	return time.Duration(uint64(i%4+5)<<exp - 1)
}

// OpName is the name of ServerStatus.Ops[op].
func OpName(op int) string { return wire.Op(op).String() }
