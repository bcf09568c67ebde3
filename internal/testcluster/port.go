package testcluster

import (
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"
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
	syscall.ForkLock.RLock()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal("socket:", err)
	}
	if runtime.GOOS == "linux" {
		t.Cleanup(func() { _ = syscall.Close(fd) })
	} else {
		defer syscall.Close(fd)
	}
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal("setsockopt:", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal("bind:", err)
	}
	sa, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal("getsockname:", err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(sa.(*syscall.SockaddrInet4).Port))
}
