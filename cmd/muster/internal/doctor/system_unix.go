//go:build unix

package doctor

import "golang.org/x/sys/unix"

// openFiles is the hard limit: Go raises the soft one to it.
func openFiles() (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	return l.Max, err
}
