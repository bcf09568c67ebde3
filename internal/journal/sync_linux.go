package journal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errUnlinked is the error of a sync of a file that was removed: no start will read it.
var errUnlinked = errors.New("the file was removed")

// syncData calls fdatasync, which does not write the times of the file as fsync does.
func syncData(f *os.File) error {
	fd := int(f.Fd())
	for {
		if err := unix.Fdatasync(fd); err != unix.EINTR {
			return errors.Join(err, checkLinked(fd))
		}
	}
}

// checkLinked returns errUnlinked if a file no longer has a name.
func checkLinked(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink > 0 {
		return err
	}
	return errUnlinked
}
