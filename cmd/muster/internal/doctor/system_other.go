//go:build !linux

package doctor

import (
	"os"

	"golang.org/x/sys/unix"
)

func holder(int) string            { return "" }
func ephemeral() (first, last int) { return 49152, 65535 }

func volume(dir string) (Volume, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Volume{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Volume{Free: uint64(st.Bavail) * uint64(st.Bsize)}, nil
}
