package journal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errUnlinked is what a sync of a file returns that was removed: nothing reads it again.
var errUnlinked = errors.New("the file was removed")

// syncData leaves out what fsync does beyond it, the times of the file.
func syncData(f *os.File) error {
	fd := int(f.Fd())
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return errors.Join(err, linked(fd))
		}
	}
}

// linked reports whether a file still has a name.
func linked(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink > 0 {
		return err
	}
	return errUnlinked
}
