package main

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// openNameless opens a file without a name on the file system of dir, or returns nil if that is not
// supported.
func openNameless(dir string, mode os.FileMode) *os.File {
	f, err := os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, mode)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(descriptor(f)); err != nil { // without /proc the file could not get a name
		_ = f.Close()
		return nil
	}
	return f
}

func linkNameless(f *os.File, path string) error {
	return os.NewSyscallError("link", unix.Linkat(unix.AT_FDCWD, descriptor(f), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW))
}

func descriptor(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
