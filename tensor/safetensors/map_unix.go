//go:build unix

package safetensors

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile reads the header as other files are read, so that a file that is cut off meanwhile is an
// error there.
func mapFile(name string) (*File, error) {
	r, size, err := openFile(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h, err := ReadHeader(r, size)
	if err != nil {
		return nil, err
	}
	// Some file systems in user space allow private mappings only.
	b, err := unix.Mmap(int(r.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("safetensors: map %s: %w; it can be loaded", name, err)
	}
	return &File{Header: *h, data: b[h.start:], mapped: b}, nil
}

func unmap(b []byte) error { return unix.Munmap(b) }

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
