package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// goesOn asserts that all ranks complete barrier seq.
func (g *team) goesOn(seq uint64) {
	g.t.Helper()
	g.all(func(rank int, _ *store.Store) error { return g.barrier(bounded(g.t), rank, seq) })
}

// lost asserts that err names ranks as lost, and returns the failure.
func lost(t *testing.T, err error, ranks ...int) *wire.Failure {
	t.Helper()
	require.ErrorIs(t, err, store.ErrLost)
	e, ok := errors.AsType[*store.Error](err)
	require.True(t, ok && e.Failure != nil, err)
	require.Equal(t, ranks, e.Failure.Lost)
	return e.Failure
}

// through returns a client of s that is connected through a proxy.
func (s *service) through(t *testing.T) (*store.Store, *testcluster.Proxy) {
	t.Helper()
	p := testcluster.NewProxy(t, s.addr)
	return dial(t, p.Addr()), p
}

// TestSilentPeerIsLostAfterItsLivenessTimeout checks that a peer that stops sending without closing
// its connection fails after its liveness timeout, and not before. The timeout is that of the
// server, or that of the peer, which may be shorter or longer.
func TestSilentPeerIsLostAfterItsLivenessTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		engine       way
		server, peer time.Duration
	}{
		"of the server":                   {engines[0], time.Second, 0},
		"of a durable store":              {durables[0], time.Second, 0},
		"shorter than the server's":       {engines[0], 0, time.Second},
		"longer than the server's":        {engines[0], 100 * time.Millisecond, time.Second},
		"less than can be sent":           {engines[0], 0, time.Nanosecond},
		"less than the server can detect": {engines[0], time.Nanosecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &store.Server{Engine: c.engine.engine(t), Limits: store.ServerLimits{LivenessTimeout: c.server}}, c.engine.wires)
			proxy := testcluster.NewProxy(t, s.addr)
			b := testcluster.Dial(t, proxy.Addr(), &store.DialOptions{LivenessTimeout: c.peer})
			a := testcluster.Dial(t, s.addr, &store.DialOptions{LivenessTimeout: time.Minute})
			g := teamOf(t, a, b)
			g.goesOn(1)
			start := time.Now()
			proxy.Blackhole(true)
			lost(t, g.barrier(bounded(t), 0, 2), 1)
			// The last message may have come a moment before start.
			require.Greater(t, time.Since(start), min(max(c.server, c.peer), time.Second)-200*time.Millisecond)
			require.Less(t, time.Since(start), 8*time.Second)
			s.Says(t, "peer lost")
			proxy.Cut(testcluster.RST) // otherwise its Close would wait
		})
	}
}

// TestLongRequestKeepsItsConnection checks that a request whose transfer takes longer than the liveness
// timeout makes neither side suspect the other.
func TestLongRequestKeepsItsConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	proxy := testcluster.NewProxy(t, s.addr)
	small := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		// The buffer is small: while the kernel sends what it has buffered, the connection seems
		// silent.
		return c, c.(*net.TCPConn).SetWriteBuffer(64 << 10)
	}
	c := testcluster.Dial(t, proxy.Addr(), &store.DialOptions{LivenessTimeout: 2 * time.Second, Dial: small})
	proxy.Up.Throttle(5 << 20)
	conn := store.ConnOf(c.Engine())
	start := time.Now()
	require.NoError(t, c.Set(bounded(t), "k", make([]byte, 15<<20), nil))
	require.Greater(t, time.Since(start), 5*time.Second/2)
	require.Same(t, conn, store.ConnOf(c.Engine()), "it has not connected again")
}

// TestIdlePeersAreNotLost checks that an idle peer that answers liveness probes is not lost.
func TestIdlePeersAreNotLost(t *testing.T) {
	t.Parallel()
	s := serve(t, &store.Server{Limits: store.ServerLimits{LivenessTimeout: 1500 * time.Millisecond}}, tcp)
	g := teamOf(t, s.client(t), s.client(t))
	waiting := start(func() error { return g.barrier(bounded(t), 0, 1) })
	ctx := testcluster.Within(t, 2500*time.Millisecond)
	require.ErrorIs(t, g.stores[1].Follow(ctx, wire.Contribution{Generation: g.gen, Rank: 1}), context.DeadlineExceeded)
	require.NoError(t, g.barrier(bounded(t), 1, 1))
	require.NoError(t, <-waiting)
}

// TestStutteringServerFindsSilentPeers checks that a peer that sends nothing is found not before its
// liveness timeout, and within twice that time as far as the server has run, however it is stopped.
func TestStutteringServerFindsSilentPeers(t *testing.T) {
	for seed := range testcluster.Form(uint64(300), 30000) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			timeout := 600*time.Millisecond + time.Duration(r.Int64N(int64(10*time.Second)))
			longest, often := r.Int64N(int64(time.Second))+1, r.IntN(3)
			took, ran := store.Silent(timeout, func() time.Duration {
				if r.IntN(3) > often {
					return 0
				}
				return time.Duration(r.Int64N(longest))
			})
			require.GreaterOrEqual(t, took, timeout, "seed %d", seed)
			require.LessOrEqual(t, ran, 2*timeout, "seed %d", seed)
		})
	}
}

// TestFrozenServerFailsNoPeer checks that no peer is lost because the server was stopped: sessions,
// leases, TTLs and deadlines are extended by the time for which it did not run.
func TestFrozenServerFailsNoPeer(t *testing.T) {
	t.Parallel()
	p := newProcess(t, "server", "")
	a, b := dial(t, p.addr), dial(t, p.addr)
	g := teamOf(t, a, b)
	ctx := bounded(t)
	held, err := b.Lease(ctx, time.Second)
	require.NoError(t, err)
	require.NoError(t, b.Set(ctx, "held", nil, &store.SetOptions{Lease: held}))
	require.NoError(t, b.Set(ctx, "short", nil, &store.SetOptions{TTL: 2 * time.Second}))
	voted := start(func() error { return g.barrier(ctx, 0, 1) })
	short := testcluster.Within(t, 10*time.Second)
	waiting := start(func() error { _, err := a.Wait(short, "later"); return err })
	works(t, b)
	testcluster.Freeze(t, p.Process)
	<-time.After(3 * time.Second) // the test is about elapsed time
	testcluster.Thaw(t, p.Process)
	_, err = a.Get(ctx, "short")
	require.NoError(t, err, "a TTL ended while the server stood still")
	_, err = a.Get(ctx, "held")
	require.NoError(t, err, "a lease ended while the server stood still")
	require.NoError(t, b.Set(ctx, "later", nil, nil))
	require.NoError(t, g.barrier(ctx, 1, 1))
	require.NoError(t, <-voted)
	require.NoError(t, <-waiting)
	g.goesOn(2)
	require.NoError(t, held.Err())
	require.NoError(t, held.Close(ctx))
}
