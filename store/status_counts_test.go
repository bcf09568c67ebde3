package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// counts polls the counters of a store until wanted returns true, and returns them.
func counts(t *testing.T, e store.Engine, wanted func(*store.ServerStatus) bool) (got *store.ServerStatus) {
	t.Helper()
	testcluster.Eventually(t, testTimeout, func() bool {
		s, err := store.New(e).Status(t.Context(), "")
		require.NoError(t, err)
		got = s.Server
		return wanted(got)
	}, "the numbers are as they should be")
	return got
}

func TestStatusCountsConnections(t *testing.T) {
	for _, wires := range engines[:2] {
		t.Run(wires.name, func(t *testing.T) {
			m := new(store.Memory)
			s := serve(t, &store.Server{Engine: m, Limits: store.ServerLimits{Conns: 2, ReconnectTimeout: time.Millisecond}}, wires.wires)
			require.Equal(t, &store.ServerStatus{}, firstCounts(t, m))
			works(t, s.client(t))
			second := s.greeted(t)
			counts(t, m, func(n *store.ServerStatus) bool {
				return n.Conns == 2 && n.Accepted == 2 && n.Refused == 0 && n.Sessions == 2
			})
			s.raw(t)
			counts(t, m, func(n *store.ServerStatus) bool { return n.Conns == 2 && n.Accepted == 2 && n.Refused == 1 })
			require.NoError(t, second.Close())
			counts(t, m, func(n *store.ServerStatus) bool { return n.Conns == 1 && n.LostSessions == 1 && n.Sessions == 1 })
		})
	}
}

// TestStatusShowsTheLoop checks that an operator can see, and choose, how sockets are read.
func TestStatusShowsTheLoop(t *testing.T) {
	loop := func() string {
		m := new(store.Memory)
		works(t, serve(t, &store.Server{Engine: m}, tcp).client(t))
		return counts(t, m, func(*store.ServerStatus) bool { return true }).Loop
	}
	l, err := transport.NewLoop()
	if err != nil {
		t.Skip("SKIPPED: there are loops on Linux only: ", err)
	}
	defer l.Close()
	require.Equal(t, l.Kind(), loop())
	t.Setenv(transport.NoIOUring, "1")
	require.Equal(t, "epoll", loop())
}

// firstCounts returns the counters before the first connection, without those that differ from run
// to run.
func firstCounts(t *testing.T, m *store.Memory) *store.ServerStatus {
	s, err := store.New(m).Status(t.Context(), "")
	require.NoError(t, err)
	s.Server.Up, s.Server.Ops = 0, nil
	return s.Server
}

func TestStatusCountsWatches(t *testing.T) {
	m := &store.Memory{Limits: store.Limits{History: 3}}
	s := store.New(m)
	defer s.Close()
	for range 10 {
		require.NoError(t, s.Set(t.Context(), "k", []byte("v"), nil))
	}
	for _, err := range s.Watch(t.Context(), "", 1) {
		require.ErrorIs(t, err, store.ErrCompacted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, err := range s.Watch(ctx, "", 0) {
			assert.ErrorIs(t, err, context.Canceled)
		}
	}()
	counts(t, m, func(n *store.ServerStatus) bool { return n.Watches == 1 && n.Compacted == 1 && n.History == 3 })
	cancel()
	<-done
	counts(t, m, func(n *store.ServerStatus) bool { return n.Watches == 0 })
}

func TestStatusCountsWritesOfTheLog(t *testing.T) {
	m := &store.Memory{Dir: t.TempDir()}
	defer m.Close()
	s := store.New(m)
	before := counts(t, m, func(n *store.ServerStatus) bool { return n.Durable })
	for range 5 {
		require.NoError(t, s.Set(t.Context(), "k", make([]byte, 1000), nil))
	}
	after := counts(t, m, func(n *store.ServerStatus) bool { return n.LogBytes > before.LogBytes+5000 })
	require.GreaterOrEqual(t, sum(after.Syncs), sum(before.Syncs)+5)
	require.Greater(t, after.SyncSum, before.SyncSum)
}

func sum(buckets []wire.Bucket) (n int64) {
	for _, b := range buckets {
		n += b.Count
	}
	return n
}
