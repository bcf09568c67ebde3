package store_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/storetest"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// world returns a function that opens sessions on one store.
type world = func(t *testing.T) (session func() store.Engine)

func memory(*testing.T) func() store.Engine {
	m := new(store.Memory)
	return func() store.Engine { return m }
}

// served returns a world in which the engine is behind a Server; grace is the reconnect timeout.
func served(engine func(*testing.T) store.Backend, w wires, grace time.Duration) world {
	return func(t *testing.T) func() store.Engine {
		e := engine(t)
		l, dial := w(t)
		srv := &store.Server{Engine: e, Limits: store.ServerLimits{ReconnectTimeout: grace}}
		testcluster.ServeAt(t, srv, l)
		return func() store.Engine {
			s, err := store.Dial(t.Context(), "127.0.0.1:1", &store.DialOptions{Dial: dial})
			require.NoError(t, err)
			return s.Engine()
		}
	}
}

// wires returns a listener for a server, and the dial function with which clients reach it.
type wires func(*testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error))

func tcp(t *testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

// pipes are connections without sockets. As with TLS, each write to them may block.
func pipes(*testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	return l, func(ctx context.Context, _, _ string) (net.Conn, error) {
		mine, theirs := net.Pipe()
		select {
		case l.conns <- theirs:
			return mine, nil
		case <-l.closed:
			return nil, net.ErrClosed
		}
	}
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// breaks ends the connection of a client, which reconnects.
func breaks(e store.Engine) {
	if c := store.ConnOf(e); c != nil {
		_ = c.Close()
	}
}

func newMemory(*testing.T) store.Backend { return new(store.Memory) }

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, memory, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
}

// otherWay skips the test by default. It is for runs of the contract over a combination of parts in
// which each part is covered by another run.
func otherWay(t *testing.T) {
	t.Helper()
	testcluster.SoakOnly(t, "the contract over another combination of the same parts")
}

func TestPrefix(t *testing.T) {
	otherWay(t)
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		e := store.Prefix(store.New(new(store.Memory)), "jobs/").Engine()
		return func() store.Engine { return e }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}, Key: 8<<10 - len("jobs/")})
}

// Reconnect timeouts: soonLost for tests that wait for a loss, and comesBack for tests in which a
// session must be resumed, however slow the machine is.
const (
	soonLost  = 50 * time.Millisecond
	comesBack = time.Minute
)

func TestClientServerMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, served(newMemory, tcp, soonLost), nil)
}

// TestClientServerMemoryOverPipes runs the contract over connections that are not sockets, each of
// which the server reads in a goroutine of its own.
func TestClientServerMemoryOverPipes(t *testing.T) {
	otherWay(t)
	storetest.Run(t, served(newMemory, pipes, soonLost), nil)
}

func TestReconnect(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, served(e.engine, e.wires, comesBack), &storetest.Options{Break: breaks, Only: []string{"Reconnect"}})
		})
	}
}
