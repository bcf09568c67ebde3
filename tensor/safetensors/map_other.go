//go:build !unix

package safetensors

func mapFile(name string) (*File, error) { return loadFile(name) }

func unmap([]byte) error { return nil }

// syncDir does nothing on systems that cannot sync directories.
func syncDir(string) error { return nil }
