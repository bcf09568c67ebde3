package store

import (
	"net"
	"time"

	"github.com/muster-pg/muster/internal/durable"
)

// ConnOf returns the connection of a client.
func ConnOf(e Engine) net.Conn {
	c := e.(*client)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return nil
	}
	return c.conn.nc
}

// Breath is the extension of deadlines that passed while the process was stopped.
const Breath = catchUpTime

// Silent returns when a peer that sends nothing is found, if the server is stopped after each of its
// checks for the time that stop returns.
func Silent(timeout time.Duration, stop func() time.Duration) (took, ran time.Duration) {
	var l liveness
	found := make(chan struct{})
	began, stood := time.Now(), time.Duration(0)
	checkOften(found, func(late bool) {
		if l.miss(timeout, late) == endPeer {
			took = time.Since(began)
			ran = took - stood
			close(found)
			return
		}
		d := stop()
		<-time.After(d)
		stood += d
	})
	return took, ran
}

// StandStill makes m act as if its process had been stopped for d before its next deadline.
func StandStill(m *Memory, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.start = m.start.Add(-d)
}

// Waiting returns the number of calls that wait in this process.
func Waiting(m *Memory) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.calls)
}

// Calls returns the number of calls of a client that have no reply.
func Calls(e Engine) int {
	c := e.(*client)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// Cancelled returns the number of cancels of a client that wait for the replies of their calls.
func Cancelled(e Engine) int {
	c := e.(*client)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.cancelled)
}

// BucketOf and BucketEnd are those of the latency histogram.
func BucketOf(d time.Duration) int  { return bucketOf(d) }
func BucketEnd(i int) time.Duration { return bucketEnd(i) }

// SetFS makes a Memory that is not open yet keep its log in fs.
func SetFS(m *Memory, fs durable.FS) { m.fs = fs }

// Overloaded reports whether requests wait for the disk of a durable Memory.
func Overloaded(m *Memory) bool { return m.commit.overloaded() }

// GroupStacks groups the text of runtime.Stack.
func GroupStacks(all string) string { return groupStacks(all) }

// RightsOf returns the rights of the matched accesses together.
var RightsOf = rightsOf

// Rights are the rights of a peer.
type Rights = rights

// Refuse returns why a request is refused, or "" if it is allowed.
var Refuse = rights.refuse
