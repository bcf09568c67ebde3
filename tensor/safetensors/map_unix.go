//go:build unix

package safetensors

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapFile maps a file. It reads the header from the file and not from the mapping, so that a file
// that is truncated meanwhile is an error and not a fault.
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
	// Some file systems in user space allow only private mappings.
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
