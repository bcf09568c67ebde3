//go:build !unix

package safetensors

import "io"

// mapFile reads a file into memory.
func mapFile(name string) (*File, error) {
	r, size, err := openFile(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, size)
	if n, err := io.ReadFull(r, b); err != nil {
		return nil, cutOff(err, int64(n), "what it had when it was opened")
	}
	return Parse(b)
}

func unmap([]byte) error { return nil }

// syncDir does nothing on systems that cannot sync directories.
func syncDir(string) error { return nil }
