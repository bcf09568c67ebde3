package journal

import (
	"io"
	"os"
)

// FS is the part of a file system that a journal and a checkpoint use. Names are paths.
type FS interface {
	Create(name string) (File, error) // fails if the file exists
	Open(name string) (File, error)   // for reading and writing
	Remove(name string) error
	Rename(from, to string) error // replaces an existing file
	ReadDir(dir string) (names []string, err error)
	SyncDir(dir string) error // makes earlier calls of Create, Remove and Rename durable
}

// File is an open file. One goroutine at a time uses it.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error               // makes the data, and the metadata needed to read them, durable
	Truncate(size int64) error // to a smaller size
	Size() (int64, error)
}

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

type osFile struct{ *os.File }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Create(name string) (File, error) {
	return open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) Open(name string) (File, error) { return open(name, os.O_RDWR) }

func open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) ReadDir(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (f osFile) Sync() error { return syncData(f.File) }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
