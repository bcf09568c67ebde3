package spin

import (
	"math"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
	// RefusedPause is how long a Sleep takes that the system refuses.
	RefusedPause = time.Millisecond
)

// Sleep returns when Wake is called for word, in this process or another one that shares its memory,
// at once if word does not have the value, after d, or for no reason. If the system refuses to let it
// sleep (a seccomp filter), it pauses, so that its caller, who asks again, does not compute meanwhile.
func Sleep(word *uint32, value uint32, d time.Duration) {
	timeout := unix.NsecToTimespec(int64(d))
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
	default:
		time.Sleep(min(d, RefusedPause))
	}
}

// Wake wakes all that sleep on word.
func Wake(word *uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32, 0, 0, 0)
}
