package store_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/store"
)

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
	l := scenario.NewListener()
	return l, l.Conn
}

// breakConn ends the connection of a client, which reconnects.
func breakConn(e store.Engine) {
	if c := store.ConnOf(e); c != nil {
		_ = c.Close()
	}
}

func newMemory(*testing.T) store.Backend { return new(store.Memory) }

// Reconnect timeouts: soonLost for tests that wait for a loss, and comesBack for tests in which a
// session must be resumed, however slow the machine is.
const (
	soonLost  = 50 * time.Millisecond
	comesBack = time.Minute
)
