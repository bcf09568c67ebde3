package testcluster

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Conns returns both ends of a TCP connection on loopback, until the test ends. They have buffers, so
// that both sides may write at the same time, which those of net.Pipe may not.
func Conns(t testing.TB) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialed, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = dialed.Close(); _ = accepted.Close() })
	return dialed, accepted
}
