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
