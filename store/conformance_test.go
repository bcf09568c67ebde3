package store_test

import (
	"context"
	"net"
	"sync"
	"testing"

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

// served is the same engine behind a Server.
func served(engine func(*testing.T) store.Engine, w wires) world {
	return func(t *testing.T) func() store.Engine {
		e := engine(t)
		l, dial := w(t)
		srv := &store.Server{Engine: e}
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

func newMemory(*testing.T) store.Engine { return new(store.Memory) }

func newPrefix(*testing.T) store.Engine {
	return store.Prefix(store.New(new(store.Memory)), "jobs/").Engine()
}

func TestMemory(t *testing.T) {
	storetest.Run(t, memory, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
}

func TestPrefix(t *testing.T) {
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		e := newPrefix(t)
		return func() store.Engine { return e }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}, Key: 8<<10 - len("jobs/")})
}

func TestClientServerMemory(t *testing.T) {
	storetest.Run(t, served(newMemory, tcp), &storetest.Options{Cut: cut})
}

// The server reads connections that are no sockets with a goroutine for each.
func TestClientServerMemoryOverPipes(t *testing.T) {
	storetest.Run(t, served(newMemory, pipes), &storetest.Options{Cut: cut})
}

// The server gives engines other than a Memory a goroutine for each call.
func TestClientServerPrefix(t *testing.T) {
	storetest.Run(t, served(newPrefix, tcp), &storetest.Options{Cut: cut, Key: 8<<10 - len("jobs/")})
}
