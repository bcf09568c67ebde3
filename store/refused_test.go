package store_test

import (
	"context"
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

// TestAFrameThatTheStoreCannotRead checks that a frame that the store cannot parse is an error of
// its call, and is not sent again. The session and its other calls continue.
func TestAFrameThatTheStoreCannotRead(t *testing.T) {
	t.Parallel()
	for name, behindRelay := range map[string]bool{"directly": false, "through a relay": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, &store.Server{Engine: new(store.Memory)}, tcp)
			at := s.addr
			if behindRelay {
				at = relay(t, s.addr, new(store.Server), tcp).addr
			}
			c := dial(t, at)
			held, err := c.Lease(bounded(t), time.Minute)
			require.NoError(t, err)
			waiting := startWait(t, c, "k")
			bad := wire.Request{Op: wire.OpAdd, Key: strings.Repeat("n", wire.MaxKey+1), Add: 1}
			for range 3 {
				err = c.Engine().Do(bounded(t), &bad, new(wire.Reply))
				require.ErrorIs(t, err, store.ErrTooLarge)
				require.ErrorContains(t, err, "the store rejected the request: ")
			}
			n, err := c.Add(bounded(t), "n", 1)
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.NoError(t, c.Set(bounded(t), "k", nil, &store.SetOptions{Lease: held}), "the session is the same")
			require.NoError(t, <-waiting)
			counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Accepted <= 5 })
		})
	}
}

// TestConnectionsThatBringNothing checks that a client whose connections end one after the other,
// without a reply, waits longer and longer between them.
func TestConnectionsThatBringNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	var dials atomic.Int32
	ctx := testcluster.Within(t, time.Second)
	c := dialWith(t, s.addr, &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &deafAfterHello{Conn: conn}, err
	}})
	_, err := c.Wait(ctx, "k")
	require.ErrorIs(t, err, store.ErrTimeout)
	require.Less(t, dials.Load(), int32(20))
	require.Greater(t, dials.Load(), int32(3))
}

// deafAfterHello is a connection that ends at its second write.
type deafAfterHello struct {
	net.Conn
	writes atomic.Int32
}

func (c *deafAfterHello) Write(b []byte) (int, error) {
	if c.writes.Add(1) > 1 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}
