package collective_test

import (
	"bytes"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// tightConn takes a few bytes at once, if its caller does not wait.
type tightConn struct {
	net.Conn
	chance *rand.Rand
	got    []byte
	calls  int
}

func (c *tightConn) Write(b []byte) (int, error) {
	c.calls++
	c.got = append(c.got, b...)
	return len(b), nil
}

func (c *tightConn) WriteNow(bufs [][]byte) (int, error) {
	c.calls++
	all := bytes.Join(bufs, nil)
	n := c.chance.IntN(min(len(all), 100_000) + 1)
	c.got = append(c.got, all[:n]...)
	return n, nil
}

// TestSmallSlicesAreWrittenTogether sends messages of many slices to sockets that are almost full: all
// bytes are written once, in few system calls.
func TestSmallSlicesAreWrittenTogether(t *testing.T) {
	t.Parallel()
	c := &tightConn{chance: rand.New(rand.NewPCG(1, 2))}
	const messages = 100
	for range messages {
		slices := make([][]byte, 5000)
		for i := range slices {
			slices[i] = bytes.Repeat([]byte{byte(i)}, c.chance.IntN(100))
		}
		data := bytes.Join(slices, nil)
		c.got = nil
		require.NoError(t, collective.SendSlices(c, slices))
		require.Greater(t, len(c.got), len(data))
		require.True(t, bytes.HasSuffix(c.got, data))
	}
	require.Less(t, c.calls, 50*messages)
}

// TestLeaveRanksThatDoNotRead checks that a rank that leaves waits once for all ranks that do not
// read, and not for one after the other.
func TestLeaveRanksThatDoNotRead(t *testing.T) {
	t.Parallel()
	g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1})
	require.NoError(t, err)
	defer g.Close()
	var full []net.Conn
	for range 32 {
		conn, peer := net.Pipe() // takes nothing that is not read
		defer peer.Close()
		full = append(full, conn)
	}
	began := time.Now()
	collective.Leave(g, full)
	require.Less(t, time.Since(began), time.Second)
}
