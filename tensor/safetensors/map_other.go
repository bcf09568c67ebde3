//go:build !unix

package safetensors

func mapFile(name string) (*File, error) { return loadFile(name) }

func unmap([]byte) error { return nil }

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
