package pgroup_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// TestOneRankMakesNoMemory checks that a rank that may not make a memory, by a seccomp filter, opens
// that of another one.
func TestOneRankMakesNoMemory(t *testing.T) {
	pgrouptest.Job{N: 2}.Run(t, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			refuse(t, unix.SYS_MEMFD_CREATE)
			_, err := unix.MemfdCreate("x", 0)
			require.ErrorIs(t, err, unix.EPERM)
		}
		untilInMemory(t, g)
		require.NoError(t, g.Shutdown(t.Context()))
	})
}

// refuse lets a system call of this process fail from now on.
func refuse(t *testing.T, call uint32) {
	t.Helper()
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	require.Zero(t, errno)
}
