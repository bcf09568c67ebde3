//go:build unix

package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile keeps others out until f is closed, also by the end of the process.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// lockDir is lockFile for a directory, where the file system can do that.
func lockDir(f *os.File) error {
	if err := lockFile(f); errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	return nil
}
