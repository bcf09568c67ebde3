//go:build unix

package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// flock locks f exclusively until it is closed, or the process ends.
func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// lockDir is flock for a directory. File systems that cannot lock directories are not an error.
func lockDir(f *os.File) error {
	if err := flock(f); errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	return nil
}

// unlock ends the lock of flock before f is closed: a child of this process that has been forked, and
// has not begun another program, has a copy of f.
func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
