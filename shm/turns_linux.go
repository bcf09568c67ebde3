package shm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// turns are those of processes that take memory below the same limit. The kernel has no way to reserve memory of a control group: between a look at what is
// left and taking it, another process may take it too, and then the kernel kills one of them. So the look and the taking are one step, which one process
// does at a time: it holds a lock (flock) on the directory where the control groups are mounted, which all processes of a host can open and which
// needs no file of ours. Processes that see other mounts, in containers, have limits of their own.
type turns struct {
	h      host
	needed bool // a limit is near
	given  bool // up: another process does not let go
}

// lockTime is how long a process waits for its turn. One that is frozen in its own would keep all others waiting.
const lockTime = 2 * time.Second

// lockPause is the wait before the lock is tried again.
const lockPause = time.Millisecond

// take calls f, which takes memory, if left bytes can be taken, of which f takes the first.
func (t *turns) take(left int64, f func() error) error {
	if !t.needed {
		return f()
	}
	if !t.given {
		if lock := t.lock(); lock != nil {
			defer lock.Close() // which unlocks it
		}
	}
	if err := t.h.room(left); err != nil {
		return err
	}
	return f()
}

// lock returns what is locked; nil if it cannot be.
func (t *turns) lock() *os.File {
	f, err := os.Open(t.h.lockable())
	if err != nil {
		t.given = true
		return nil
	}
	for start := time.Now(); ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR), time.Since(start) > lockTime:
			t.given = true
			_ = f.Close()
			return nil
		}
		<-time.After(lockPause)
	}
}

// lockable is the directory whose lock is that of all that share this host's limits.
func (h host) lockable() string {
	if len(h.mounts) == 0 {
		return "/"
	}
	return "/" + h.mounts[0].mount
}
