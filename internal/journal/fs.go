package journal

import (
	"io"
	"os"
)

// FS is what a journal, and the checkpoint beside it, need of a file system. Names are paths.
type FS interface {
	Create(name string) (File, error) // fails if it exists
	Open(name string) (File, error)   // for reading and writing
	Remove(name string) error
	Rename(from, to string) error // replaces a file that there is
	ReadDir(dir string) (names []string, err error)
	SyncDir(dir string) error // makes what Create, Remove and Rename did durable
}

// File is an open file. One goroutine at a time uses it.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Sync() error               // makes the data, and what is needed to read them, durable
	Truncate(size int64) error // to less than it has
	Size() (int64, error)
}

// OS is the operating system's.
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
