package testcluster

import (
	"os"
	"syscall"
	"testing"
)

// scratchBytes is how much a file system in memory must have free for Scratch to use it. Containers
// have 64 MiB by default, which the logs of a few stores fill.
const scratchBytes = 1 << 30

// Scratch returns a directory that is removed at the end of the test. It is in memory if the system
// has enough, for tests that are not about the disk: each sync of a file on a disk takes about a
// millisecond of processor time.
func Scratch(t testing.TB) string {
	t.Helper()
	const tmpfs = "/dev/shm"
	var st syscall.Statfs_t
	if syscall.Statfs(tmpfs, &st) != nil || st.Bavail*uint64(st.Bsize) < scratchBytes { // #nosec G115 -- a block size is positive
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(tmpfs, "scratch-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
