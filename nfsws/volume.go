package nfsws

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// volume is what a workspace needs of a directory on a file system. Names are below it, and "." is
// itself.
type volume interface {
	Mkdir(name string) error
	Create(name string) (file, error)           // to write; fails if it exists
	Open(name string) (file, error)             // to read; a regular file, not a link to one
	Rename(from, to string) error               // to a name that does not exist
	Remove(name string) error                   // a file, or an empty directory
	ReadDir(name string) ([]fs.DirEntry, error) // of a directory that is opened anew
	SyncDir(name string) error                  // makes what was created, renamed and removed in it durable
	Close() error
}

// file is an open file.
type file interface {
	io.Writer
	io.ReaderAt
	io.Closer
	Sync() error
	Size() (int64, error)
}

// osVolume is the operating system's. It is confined to its directory: no link in it leads out.
type osVolume struct {
	path string // absolute
	root *os.Root
}

type osFile struct{ *os.File }

// openVolume opens the directory called path, which is made if its parent exists.
func openVolume(path string) (*osVolume, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	switch err := os.Mkdir(path, 0o777); {
	case err == nil:
		if err := syncDir(os.Open(filepath.Dir(path))); err != nil {
			return nil, err
		}
	case !errors.Is(err, fs.ErrExist):
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &osVolume{path, root}, nil
}

func (v *osVolume) Mkdir(name string) error      { return v.root.Mkdir(name, 0o777) }
func (v *osVolume) Rename(from, to string) error { return v.root.Rename(from, to) }
func (v *osVolume) Remove(name string) error     { return v.root.Remove(name) }
func (v *osVolume) SyncDir(name string) error    { return syncDir(v.root.Open(name)) }
func (v *osVolume) Close() error                 { return v.root.Close() }
func (f osFile) Size() (n int64, err error)      { return size(f.Stat()) }
func size(i fs.FileInfo, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return i.Size(), nil
}

func (v *osVolume) Create(name string) (file, error) {
	f, err := v.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Open checks the type first: opening a pipe would block, and a link may lead anywhere in the
// directory.
func (v *osVolume) Open(name string) (file, error) {
	before, err := v.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is no regular file but %v", ErrCorrupt, before.Mode())
	}
	f, err := v.root.Open(name)
	if err != nil {
		return nil, err
	}
	if after, err := f.Stat(); err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, errors.Join(fmt.Errorf("it was another file a moment ago: %w", syscall.ESTALE), err)
	}
	return osFile{f}, nil
}

// ReadDir opens by the path where it can: a client looks at a directory's age when its name is
// looked up, not when one that is open is read.
func (v *osVolume) ReadDir(name string) ([]fs.DirEntry, error) {
	open := v.root.Open
	if name == "." {
		open, name = os.Open, v.path
	}
	d, err := open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.ReadDir(-1)
}

// syncDir syncs what was opened, and closes it. Where directories cannot be synced, their changes
// are durable at once, as on NFS, or nothing can be done.
func syncDir(d *os.File, err error) error {
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}
