package etcdlog

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/durable/logtest"
)

// Home is a log below a root for the contract of all logs. No machine replays its entries.
type Home struct {
	Client *clientv3.Client
	Root   string
}

var _ logtest.Medium = (*Home)(nil)

// Open implements logtest.Home.
func (h *Home) Open(t *testing.T, segment uint64) (r durable.Log, entries [][]byte) {
	t.Helper()
	l := &Leadership{keyspace: newKeyspace(h.Client, &Options{Root: h.Root, MaxValueBytes: 1000, FailureTimeout: 100 * time.Millisecond})}
	if segment != logtest.First { // as after a checkpoint, which names the segment
		resp, err := h.Client.Get(t.Context(), l.segmentKey(segment), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.logPrefix())), clientv3.WithLimit(1))
		require.NoError(t, err)
		require.NotEmpty(t, resp.Kvs)
		first, err := l.parseLogKey(resp.Kvs[0].Key)
		require.NoError(t, err)
		_, err = h.Client.Put(t.Context(), l.stateKey(), encode(state{Incarnation: 1, Segment: segment, Seq: first.seq}))
		require.NoError(t, err)
	}
	for {
		entries = nil
		s := &standby{keyspace: l.keyspace, entry: func(entry []byte) error {
			entries = append(entries, bytes.Clone(entry))
			return nil
		}}
		err := l.followThenLead(t.Context(), s, Leader{Addr: "127.0.0.1:1", ID: newID()})
		if err == nil {
			return l.log, entries
		}
		require.True(t, transient(err), "%v", err)
	}
}

// Process is the liveness port of a process, which ends with Close.
type Process struct {
	*livenessListener
	Leader Leader
}

// NewProcess returns a process on loopback.
func NewProcess(t *testing.T) *Process {
	t.Helper()
	id := newID()
	l, err := listenLiveness(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, id)
	require.NoError(t, err)
	return &Process{l, Leader{Addr: "127.0.0.1:1", ID: id, LivenessAddr: l.addrFor("127.0.0.1:1"), rev: 1}}
}

// Greeted returns the number of standbys that hold a connection.
func (p *Process) Greeted() int {
	return len(p.slots)
}

// Close ends the process.
func (p *Process) Close() { p.close() }

// Observe watches a process as a standby does. It returns a channel that is closed when the process
// of l has ended.
func Observe(t *testing.T, l Leader) <-chan struct{} {
	t.Helper()
	ended, stop := l.watchProcess(200 * time.Millisecond)
	t.Cleanup(stop)
	return ended
}

// Crash implements logtest.Home.
func (h *Home) Crash(t *testing.T, r durable.Log) {
	t.Helper()
	r.Fail(errClosed)
	_ = r.Close()
}
