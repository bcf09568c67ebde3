package store_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestStatusOfTheServer checks the counters and sizes of the store as a whole, and how its sockets are read.
func TestStatusOfTheServer(t *testing.T) {
	loop := ""
	if l, err := transport.NewLoop(); err == nil { // there are loops on Linux only
		loop = l.Kind()
		l.Close()
	}
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m}, tcp).client(t)
	ctx := t.Context()
	before, err := s.Status(ctx, "")
	require.NoError(t, err)
	require.NoError(t, s.Set(ctx, "k", make([]byte, 10_000), nil))
	for range 100 {
		_, err := s.Get(ctx, "k")
		require.NoError(t, err)
	}
	// The status is read over the network, and in the process of the server.
	for _, from := range []*store.Store{s, store.New(m)} {
		after, err := from.Status(ctx, "")
		require.NoError(t, err)
		a, b := after.Server, before.Server
		require.Equal(t, []int64{1, 1, 10_001}, []int64{a.Sessions, a.Keys, a.Bytes})
		require.EqualValues(t, 100, a.Ops[wire.OpGet])
		require.EqualValues(t, 1, a.Ops[wire.OpSet])
		require.Greater(t, a.In-b.In, uint64(10_000))
		require.Greater(t, a.Out-b.Out, uint64(100*10_000))
		require.Greater(t, a.Up, b.Up)
		require.False(t, a.Durable)
		require.Equal(t, loop, a.Loop)
		n := int64(0)
		for i, x := range a.Latency {
			n += x.Count
			require.Positive(t, x.Count)
			require.True(t, i == 0 || a.Latency[i-1].UpTo < x.UpTo)
		}
		require.GreaterOrEqual(t, n, int64(101), "somebody looks: times are taken")
		require.GreaterOrEqual(t, a.LatencySum, b.LatencySum+101)
		require.LessOrEqual(t, a.LatencySum, time.Minute)
	}
}

// TestStatusLastSeen checks that LastSeen grows for a rank that sends nothing, and is
// always zero for a rank in the process of the store.
func TestStatusLastSeen(t *testing.T) {
	m := new(store.Memory)
	here, there := store.New(m), serve(t, &store.Server{Engine: m}, tcp).client(t)
	teamOf(t, here, there)
	ranks := func() []store.RankStatus {
		s, err := here.Status(t.Context(), "")
		require.NoError(t, err)
		return s.Groups[0].Ranks
	}
	require.Eventually(t, func() bool { return ranks()[1].LastSeen > 0 }, 10*time.Second, 10*time.Millisecond)
	require.Zero(t, ranks()[0].LastSeen)
	_, err := there.Revision(t.Context())
	require.NoError(t, err)
	require.Zero(t, ranks()[1].LastSeen)
}

// replying returns a store that replies to all requests as reply says.
func replying(reply func(req *wire.Request) wire.Reply) *store.Store {
	return store.New(&faulty{do: func(_ context.Context, req *wire.Request, rep *wire.Reply) error {
		*rep = reply(req)
		return nil
	}})
}

// TestStatusOfAFalseStore checks that pages that never end, or that do not parse, are a protocol
// error, and need no memory without a bound.
func TestStatusOfAFalseStore(t *testing.T) {
	for what, rep := range map[string]wire.Reply{
		"the same page again": {Nums: []int64{0, 0}},
		"a page before":       {Nums: []int64{-1, 0}},
		"half of a place":     {Nums: []int64{7}},
		"rubbish":             {Value: []byte("rubbish")},
		"names of nothing":    {Keys: []string{"x"}},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := replying(func(*wire.Request) wire.Reply { return rep }).Status(t.Context(), "")
			require.ErrorIs(t, err, store.ErrProtocol)
		})
	}
	_, err := replying(func(*wire.Request) wire.Reply { return wire.Reply{Code: wire.CodeUnsupported} }).Status(t.Context(), "")
	require.ErrorIs(t, err, store.ErrUnsupported)
	row := append([]byte{255, 0, 0, 0, 1}, make([]byte, 16<<20)...) // of an unknown kind
	_, err = replying(func(req *wire.Request) wire.Reply {          // there is always one more page
		return wire.Reply{Value: row, Nums: []int64{int64(req.Group.Generation) + 1, 0}}
	}).Status(t.Context(), "")
	require.ErrorIs(t, err, store.ErrProtocol)
	require.ErrorContains(t, err, "too large")
}

func TestBuckets(t *testing.T) {
	last := -1
	for _, d := range []time.Duration{-1, 0, 1, 3, 4, 7, 8, 9, 10, 100, 1000, time.Millisecond, time.Second, time.Hour, math.MaxInt64} {
		i := store.BucketOf(d)
		require.GreaterOrEqual(t, i, last)
		require.Less(t, i, 256)
		require.GreaterOrEqual(t, store.BucketEnd(i), d)
		if i > 0 && d > 0 {
			require.Less(t, store.BucketEnd(i-1), d)
			require.LessOrEqual(t, float64(store.BucketEnd(i)), 1.25*float64(d), "%v", d)
		}
		last = i
	}
}

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
	eachWith(t, store.ServerLimits{Conns: 2, ReconnectTimeout: time.Millisecond}, func(t *testing.T, s *service) {
		counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Conns == 0 && n.Accepted == 0 && n.Sessions == 0 })
		works(t, s.client(t))
		second := s.greeted(t)
		counts(t, s.Engine, func(n *store.ServerStatus) bool {
			return n.Conns == 2 && n.Accepted == 2 && n.Refused == 0 && n.Sessions == 2
		})
		s.raw(t)
		counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Conns == 2 && n.Accepted == 2 && n.Refused == 1 })
		require.NoError(t, second.Close())
		counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Conns == 1 && n.LostSessions == 1 && n.Sessions == 1 })
	})
}

func TestStatusCountsWatches(t *testing.T) {
	m := &store.Memory{Limits: store.Limits{History: 3}}
	s := store.New(m)
	defer s.Close()
	for range 10 {
		require.NoError(t, s.Set(t.Context(), "k", []byte("v"), nil))
	}
	require.ErrorIs(t, last(s.Watch(t.Context(), "", 1)), store.ErrCompacted)
	ctx, cancel := context.WithCancel(t.Context())
	watching := start(func() error { return last(s.Watch(ctx, "", 0)) })
	counts(t, m, func(n *store.ServerStatus) bool { return n.Watches == 1 && n.Compacted == 1 && n.History == 3 })
	cancel()
	require.ErrorIs(t, <-watching, context.Canceled)
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
