//go:build unix

package doctor

import "golang.org/x/sys/unix"

// openFiles returns the hard limit, because Go raises the soft limit to it.
func openFiles() (uint64, error) {
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	return l.Max, err
}
