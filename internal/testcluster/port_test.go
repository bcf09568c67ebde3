package testcluster_test

import (
	"net"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// TestPort checks that a reserved address refuses connections unless a server listens there, which
// may end and start again, and that the system gives its port to no other socket.
func TestPort(t *testing.T) {
	addr := testcluster.Port(t)
	refused := func() {
		_, err := net.Dial("tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	refused()
	for range 2 {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		served, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		require.NoError(t, served.Close()) // the server's side waits in TIME_WAIT
		require.NoError(t, c.Close())
		refused()
	}
	if runtime.GOOS != "linux" {
		return
	}
	for range 1000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		require.NotEqual(t, addr, l.Addr().String())
	}
}
