package testcluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// Serve runs srv on loopback until the test ends, and returns its address. A server without an
// engine gets a new store.Memory. The engine is closed with the server. It skips a test that should
// use the store of StoreVariable.
func Serve(t testing.TB, srv *store.Server) (addr string) {
	t.Helper()
	l := Listen(t)
	ServeAt(t, srv, l)
	return l.Addr().String()
}

// ServeAt is Serve with a listener. stop ends the server and its engine before the test ends.
func ServeAt(t testing.TB, srv *store.Server, l net.Listener) (stop func()) {
	if srv.Engine == nil {
		srv.Engine = new(store.Memory)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	stop = sync.OnceFunc(func() {
		_ = srv.Close()
		_ = srv.Engine.Close()
		if err := <-served; !errors.Is(err, store.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Dial connects to the store at addr until the test ends.
func Dial(t testing.TB, addr string, o *store.DialOptions) *store.Store {
	t.Helper()
	s, err := store.Dial(Within(t, eventTimeout), addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Within returns a context of the test that ends after d.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Listen listens on loopback until the test ends, for a process that serves a store. It skips a test
// that should use the store of StoreVariable.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	skipOwnStore(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
