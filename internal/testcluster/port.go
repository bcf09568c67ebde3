package testcluster

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stretchr/testify/require"
)

// Port returns a loopback address, as host:port, that the system gives to no other process before the
// end of the test. Connections to it are refused, until the test or one of its processes listens
// there, and again after that.
//
// A socket that is bound to the address and never listens reserves it. The system chooses the ports
// of other sockets elsewhere, and lets another socket with SO_REUSEADDR, which servers set, bind to
// the same address and listen. Systems other than Linux do not: there, the port is only one that was
// free.
func Port(t testing.TB) (addr string) {
	t.Helper()
	fd, addr, err := reserve()
	require.NoError(t, err)
	if runtime.GOOS == "linux" {
		t.Cleanup(func() { _ = unix.Close(fd) })
	} else {
		_ = unix.Close(fd)
	}
	return addr
}
