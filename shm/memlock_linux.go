package shm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// memoryLock serializes processes that reserve memory below the same limit. The kernel has no way
// to reserve memory of a control group: between a check of what is left and taking it, another
// process may take it too, and then the kernel kills one of them. So the check and the taking are
// one step, which one process does at a time: it holds a lock (flock) on the directory where the
// control groups are mounted, which all processes of a host can open and which needs no file of
// ours. Processes that see other mounts, in containers, have their own limits.
type memoryLock struct {
	h      host
	needed bool // a limit is near
	gaveUp bool // another process does not release the lock
}

// lockTime is how long a process waits for the lock. A frozen process that holds it must not block
// all others.
const lockTime = 2 * time.Second

// lockPause is the wait before the lock is tried again.
const lockPause = time.Millisecond

// take calls f, which reserves memory, if left bytes can be reserved, of which f takes the first.
func (t *memoryLock) take(left int64, f func() error) error {
	if !t.needed {
		return f()
	}
	if !t.gaveUp {
		if lock := t.lock(); lock != nil {
			defer lock.Close() // which unlocks it
		}
	}
	if err := t.h.check(left); err != nil {
		return err
	}
	return f()
}

// lock returns what is locked; nil if it cannot be.
func (t *memoryLock) lock() *os.File {
	f, err := os.Open(t.h.lockable())
	if err != nil {
		t.gaveUp = true
		return nil
	}
	for start := time.Now(); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR), time.Since(start) > lockTime:
			t.gaveUp = true
			_ = f.Close()
			return nil
		}
		<-time.After(lockPause)
	}
}

// lockable is the directory whose lock is common to all processes that share this host's limits.
func (h host) lockable() string {
	if len(h.mounts) == 0 {
		return "/"
	}
	return "/" + h.mounts[0].mount
}
