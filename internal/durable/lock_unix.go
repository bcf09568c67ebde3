//go:build unix

package durable

import (
	"os"

	"golang.org/x/sys/unix"
)

// lockFile keeps others out until f is closed, also by the end of the process.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
