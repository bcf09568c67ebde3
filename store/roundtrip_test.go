package store_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// tripCounter counts the reads that follow a write, which are the round trips of a client that
// makes its calls in sequence.
type tripCounter struct {
	net.Conn
	wrote atomic.Bool
	trips *atomic.Int64
}

func (c *tripCounter) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *tripCounter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.wrote.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}

// TestWaitIsOneRoundTrip checks that a Wait for a key that exists takes one round trip.
func TestWaitIsOneRoundTrip(t *testing.T) {
	var trips atomic.Int64
	s, err := store.Dial(t.Context(), buffered(t, new(store.Memory)), &store.DialOptions{
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &tripCounter{Conn: c, trips: &trips}, err
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	require.NoError(t, s.Set(t.Context(), "key", nil, nil))
	const calls = 100
	before := trips.Load()
	for range calls {
		_, err := s.Wait(t.Context(), "key")
		require.NoError(t, err)
	}
	require.EqualValues(t, calls, trips.Load()-before)
}
