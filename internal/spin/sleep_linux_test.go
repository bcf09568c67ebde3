package spin_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/spin"
)

// TestSleepIsRefused checks that a rank does not compute while it waits, if a seccomp filter refuses
// to let it sleep until another process wakes it.
func TestSleepIsRefused(t *testing.T) {
	const count = 20
	took := make(chan time.Duration)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine, and the filter with it
		defer close(took)
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FUTEX, Jf: 3},
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 24}, // its second argument: Go's runtime waits in private ones
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0 /* FUTEX_WAIT */, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if !assert.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) {
			return
		}
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
		if !assert.Zero(t, errno) {
			return
		}
		var word uint32
		start := time.Now()
		for range count {
			spin.Sleep(&word, 0, time.Second)
		}
		took <- time.Since(start)
	}()
	require.GreaterOrEqual(t, <-took, count*spin.RefusedPause)
}
