package store_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/storetest"
)

// world opens sessions on one store.
type world = func(t *testing.T) (session func() store.Engine)

func memory(*testing.T) func() store.Engine {
	m := new(store.Memory)
	return func() store.Engine { return m }
}

// served is the same engine behind a Server; grace is how long a session may be without a connection.
func served(engine func(*testing.T) store.Backend, w wires, grace time.Duration) world {
	return func(t *testing.T) func() store.Engine {
		e := engine(t)
		l, dial := w(t)
		srv := &store.Server{Engine: e, Limits: store.ServerLimits{ReconnectTimeout: grace}}
		var serving sync.WaitGroup
		serving.Go(func() { _ = srv.Serve(l) })
		t.Cleanup(func() {
			_ = srv.Close()
			_ = e.Close()
			serving.Wait()
		})
		return func() store.Engine {
			s, err := store.Dial(t.Context(), "127.0.0.1:1", &store.DialOptions{Dial: dial})
			require.NoError(t, err)
			return s.Engine()
		}
	}
}

// wires is how a client reaches a server.
type wires func(*testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error))

func tcp(t *testing.T) (net.Listener, func(ctx context.Context, network, addr string) (net.Conn, error)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

// pipes are connections without sockets, as TLS ones are: nothing is written to them without waiting.
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

// cut ends a client without goodbye, for ever.
func cut(e store.Engine) { store.Kill(e) }

// breaks ends a client's connection: it comes back.
func breaks(e store.Engine) {
	if c := store.ConnOf(e); c != nil {
		_ = c.Close()
	}
}

func newMemory(*testing.T) store.Backend { return new(store.Memory) }

func TestMemory(t *testing.T) {
	storetest.Run(t, memory, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
}

// otherWay is for runs of the contract over what others run it over too, but for one part: a short run has one of each part.
func otherWay(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the contract over another combination of the same parts: not in a short run")
	}
}

func TestPrefix(t *testing.T) {
	otherWay(t)
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		e := store.Prefix(store.New(new(store.Memory)), "jobs/").Engine()
		return func() store.Engine { return e }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}, Key: 8<<10 - len("jobs/")})
}

// What is lost is lost soon, so that nobody waits for it; what is to come back has all the time that it needs.
const (
	soonLost  = 50 * time.Millisecond
	comesBack = time.Minute
)

func TestClientServerMemory(t *testing.T) {
	storetest.Run(t, served(newMemory, tcp, soonLost), &storetest.Options{Cut: cut})
}

// The server reads connections that are no sockets with a goroutine for each.
func TestClientServerMemoryOverPipes(t *testing.T) {
	otherWay(t)
	storetest.Run(t, served(newMemory, pipes, soonLost), &storetest.Options{Cut: cut})
}

func TestReconnect(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, served(e.engine, e.wires, comesBack), &storetest.Options{Break: breaks, Only: []string{"Reconnect"}})
		})
	}
}
