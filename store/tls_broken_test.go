package store_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// flipping is a connection that changes one of the bytes that it transfers.
type flipping struct {
	net.Conn
	up, down atomic.Int32 // bytes left until the change in each direction; negative: no change
}

func flip(at *atomic.Int32, b []byte) {
	if i := int(at.Add(-int32(len(b)))) + len(b); i >= 0 && i < len(b) {
		b[i] ^= 0x20
	}
}

func (c *flipping) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	flip(&c.down, b[:n])
	return n, err
}

func (c *flipping) Write(b []byte) (int, error) {
	b = append([]byte(nil), b...)
	flip(&c.up, b)
	return c.Conn.Write(b)
}

// TestABrokenTLSHandshakeIsTriedAgain checks that a client retries a TLS handshake that breaks,
// even if it only sees that the handshake failed. A changed byte neither ends the session nor is
// taken for a refusal.
func TestABrokenTLSHandshakeIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t)
	s := serve(t, &store.Server{TLS: serverTLS(t, f.server()), Limits: store.ServerLimits{ReconnectTimeout: time.Minute, Handshake: time.Second}}, tcp)
	var up, down atomic.Int32
	var last atomic.Pointer[flipping]
	dialFlipping := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		c := &flipping{Conn: conn}
		c.up.Store(up.Swap(-1))
		c.down.Store(down.Swap(-1))
		last.Store(c)
		return c, err
	}
	up.Store(-1)
	down.Store(-1)
	o := &store.DialOptions{Dial: dialFlipping, TLS: f.client().Client}
	c, err := store.Dial(bounded(t), s.addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	held, err := c.Lease(bounded(t), time.Minute)
	require.NoError(t, err)
	for name, which := range map[string]*atomic.Int32{"up": &up, "down": &down} {
		for at := int32(0); at < 2000; at += 97 {
			which.Store(at)
			_ = last.Load().Close()
			require.NoError(t, c.Set(bounded(t), "k", nil, &store.SetOptions{Lease: held}), "byte %d %s", at, name)
			up.Store(-1)
			down.Store(-1)
		}
	}
	for at := int32(0); at < 1000; at += 111 { // also at the first connection
		down.Store(at)
		d, err := store.Dial(bounded(t), s.addr, o)
		require.NoError(t, err, "byte %d", at)
		require.NoError(t, d.Close())
	}
}
