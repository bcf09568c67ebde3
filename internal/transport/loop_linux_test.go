package transport_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/transport"
)

// TestLoopWithoutIOUring checks that a process that may not use io_uring, as in most containers,
// gets loops that do without it.
func TestLoopWithoutIOUring(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks it, so the thread and its filter end with the goroutine
		refuseIOUring(t)
		l, err := transport.NewLoop()
		if assert.NoError(t, err) {
			assert.Equal(t, "epoll", l.Kind())
			l.Close()
		}
	}()
	<-done
}

// refuseIOUring lets io_uring_setup fail in this thread, as the seccomp profile of Docker does.
func refuseIOUring(t *testing.T) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	assert.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	assert.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0))
}
