package store_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// durableService returns a durable store with a reconnect timeout of 5 s.
func durableService(t *testing.T) *service {
	t.Helper()
	return serve(t, &store.Server{
		Engine: &store.Memory{Dir: t.TempDir()}, Limits: store.ServerLimits{ReconnectTimeout: 5 * time.Second, LivenessTimeout: time.Second},
	}, tcp)
}

// TestMoved checks that a client leaves a connection on which nothing arrives as soon as it is
// notified that the store has moved, even while it is idle.
func TestMoved(t *testing.T) {
	s := durableService(t)
	ways := []*testcluster.Proxy{testcluster.NewProxy(t, s.addr), testcluster.NewProxy(t, s.addr)}
	var way atomic.Int64
	moved, left := make(chan struct{}), make(chan string, 10)
	c, err := store.Dial(bounded(t), "by.name:1", &store.DialOptions{
		LivenessTimeout: time.Hour,
		Resolve:         func(context.Context) (string, error) { return ways[way.Load()].Addr(), nil },
		WaitReplaced: func(ctx context.Context, addr string) error {
			defer func() { left <- addr }()
			if addr != ways[0].Addr() {
				<-ctx.Done()
				return ctx.Err()
			}
			select {
			case <-moved:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	require.NoError(t, err)
	require.NoError(t, c.Set(bounded(t), "key", []byte("value"), nil))
	ways[0].Blackhole(true)
	way.Store(1)
	close(moved)
	require.Equal(t, ways[0].Addr(), <-left)
	testcluster.Eventually(t, 10*time.Second, func() bool { return ways[1].Conns() == 1 }, "an idle client connects elsewhere")
	holds(t, c, "key", "value")
	require.NoError(t, c.Close())
	require.Equal(t, ways[1].Addr(), <-left)
}

// TestResolveFails checks that a dial with Wait retries while the address of the store is unknown,
// and that an error that waiting cannot change is returned at once.
func TestResolveFails(t *testing.T) {
	s := serve(t, &store.Server{}, tcp)
	nowhere := &store.Error{Op: "dial", Key: "the directory", Code: wire.CodeUnavailable, Err: store.ErrUnavailable, Detail: "no leader: start one"}
	denied := &store.Error{Op: "dial", Key: "the directory", Code: wire.CodeDenied, Err: store.ErrDenied}
	var left atomic.Int64
	left.Store(3)
	later := func(context.Context) (string, error) {
		if left.Add(-1) >= 0 {
			return "", nowhere
		}
		return s.addr, nil
	}
	_, err := store.Dial(bounded(t), "by.name:1", &store.DialOptions{Resolve: later})
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "no leader: start one")
	c, err := store.Dial(bounded(t), "by.name:1", &store.DialOptions{Resolve: later, Wait: true})
	require.NoError(t, err)
	require.NoError(t, c.Close())

	for want, err := range map[error]error{store.ErrDenied: denied, store.ErrUnavailable: errors.New("nonsense")} {
		ctx := bounded(t)
		_, got := store.Dial(ctx, "by.name:1", &store.DialOptions{Wait: true, Resolve: func(context.Context) (string, error) { return "", err }})
		require.ErrorIs(t, got, want)
		require.NoError(t, ctx.Err())
	}
	ctx := testcluster.Within(t, 50*time.Millisecond)
	_, err = store.Dial(ctx, "by.name:1", &store.DialOptions{Wait: true, Resolve: func(context.Context) (string, error) { return "", nowhere }})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no leader: start one") // not only the timeout

	// The end of ctx in the middle of an attempt does not hide why the one before was refused.
	ctx, cancel := context.WithCancel(bounded(t))
	left.Store(1)
	_, err = store.Dial(ctx, "by.name:1", &store.DialOptions{Wait: true, Resolve: func(ctx context.Context) (string, error) {
		if left.Load() == 0 {
			cancel()
			return "", &store.Error{Op: "dial", Code: wire.CodeUnavailable, Err: store.ErrUnavailable, Detail: "interrupted"}
		}
		return later(ctx)
	}})
	require.ErrorContains(t, err, "no leader: start one")
	require.NotContains(t, err.Error(), "interrupted")
}

// TestIdleClientOfADurableStore checks that an idle client detects that its connection is dead, and
// resumes its session elsewhere in time: before the store takes it for silent, as long after.
func TestIdleClientOfADurableStore(t *testing.T) {
	s := durableService(t)
	dead, other := testcluster.NewProxy(t, s.addr), testcluster.NewProxy(t, s.addr)
	c := testcluster.Dial(t, dead.Addr()+","+other.Addr(), &store.DialOptions{LivenessTimeout: 3 * time.Second})
	p := teamOf(t, dial(t, s.addr), c)
	p.goesOn(1)
	dead.Blackhole(true)
	dead.Refuse(true)
	testcluster.Eventually(t, 12*time.Second, func() bool { return other.Conns() > 0 }, "the idle client comes by another way")
	p.goesOn(2)
}

// TestEveryAddressIsTriedBeforeAPause checks that a client that has lost its connection tries all
// addresses without a pause in between, until one serves it.
func TestEveryAddressIsTriedBeforeAPause(t *testing.T) {
	s := durableService(t)
	front := testcluster.NewProxy(t, s.addr)
	const addresses = 100
	addrs := []string{front.Addr()}
	for range addresses - 1 {
		addrs = append(addrs, "127.0.0.1:1")
	}
	last := net.JoinHostPort("127.0.0.2", "1")
	addrs[addresses-1] = last
	var dials atomic.Int64
	c := testcluster.Dial(t, strings.Join(addrs, ","), &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch n := dials.Add(1); {
		case n == 1:
		case addr != last:
			return nil, io.EOF // like the address of a standby
		default:
			addr = s.addr
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}})
	began := time.Now()
	front.Cut(testcluster.RST)
	require.NoError(t, c.Set(bounded(t), "key", nil, nil))
	require.EqualValues(t, addresses+1, dials.Load())
	require.Less(t, time.Since(began), 5*time.Second, "a pause for each of them takes 20 s")
}
