package nfsws

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// volume is what a workspace needs of a directory on a file system. Names are below it, and "." is
// itself.
type volume interface {
	Mkdir(name string) error
	Create(name string) (file, error)           // to write; fails if it exists
	Open(name string) (file, int64, error)      // to read; a regular file, not a link to one; and its size
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
}

// osVolume is the operating system's. It is confined to its directory: no link in it leads out.
type osVolume struct {
	*os.Root
	path string // absolute
}

// openVolume opens the directory called path, which is made if its parent exists.
func openVolume(path string) (*osVolume, error) {
	err := os.Mkdir(path, 0o755)
	if err == nil {
		err = syncDir(os.Open(filepath.Dir(path)))
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return openDir(path)
}

// openDir opens the directory called path.
func openDir(path string) (*osVolume, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	before, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, notDir(path, before)
	}
	root, err := os.OpenRoot(path + asDir)
	if err != nil {
		return nil, err
	}
	v := &osVolume{root, path}
	after, err := root.Lstat(".")
	if err == nil && !os.SameFile(before, after) {
		err = errReplaced
	}
	if err == nil {
		err = v.checkOwner(path, after, true)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return v, nil
}

// asDir behind a path makes that of anything but a directory an error: to open a pipe would block.
const asDir = string(filepath.Separator) + "."

// errReplaced reports that a name was given to another file while it was opened.
var errReplaced = fmt.Errorf("it was another file a moment ago: %w", syscall.ESTALE)

// errNoDir refuses the name "", which would be that of the working directory.
var errNoDir = errors.New("no directory given")

// refused is the error of a name that a workspace does not use; at takes the path off that it adds.
func refused(path string, why error) error { return &fs.PathError{Op: "open", Path: path, Err: why} }

// notDir is the error of a name that is not that of a directory. A link to one is refused, because
// who can write beside it could have made it.
func notDir(path string, info fs.FileInfo) error {
	return refused(path, fmt.Errorf("%w but %v: remove it", syscall.ENOTDIR, info.Mode()))
}

// checkOwner returns an error for a directory of another user, who could replace what is in it.
// root may own that of a workspace.
func (v *osVolume) checkOwner(path string, info fs.FileInfo, orRoot bool) error {
	owner, known := ownerOf(info)
	if !known || owner == uint32(os.Geteuid()) || orRoot && owner == 0 {
		return nil
	}
	// A server may map users to others: who would own what this process makes there?
	probe := fmt.Sprintf(".owner-%08x", rand.Uint32())
	if err := v.Root.Mkdir(probe, 0o700); err == nil {
		mine, err := v.Lstat(probe)
		_ = v.Remove(probe)
		if err != nil {
			return err
		}
		if uid, _ := ownerOf(mine); uid == owner {
			return nil
		}
	}
	return refused(path, fmt.Errorf("%w: it belongs to user %d, and this process runs as user %d: name another directory", fs.ErrPermission, owner, os.Geteuid()))
}

// Mkdir fails with fs.ErrExist if there is a directory of this user that others cannot write to.
func (v *osVolume) Mkdir(name string) error {
	err := v.Root.Mkdir(name, 0o755)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, e := v.Lstat(name)
	path := filepath.Join(v.path, name)
	switch {
	case e != nil:
		return e
	case !info.IsDir():
		return notDir(path, info)
	case info.Mode().Perm()&0o002 != 0 && runtime.GOOS != "windows":
		return refused(path, fmt.Errorf("%w: every user may write there: chmod o-w", fs.ErrPermission))
	}
	return cmp.Or(v.checkOwner(path, info, false), err)
}

func (v *osVolume) SyncDir(name string) error { return syncDir(v.Root.Open(name + asDir)) }

func (v *osVolume) Create(name string) (file, error) {
	return v.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

// Open checks the type first: opening a pipe would block, and a link may lead anywhere in the
// directory.
func (v *osVolume) Open(name string) (file, int64, error) {
	before, err := v.Lstat(name)
	if err != nil {
		return nil, 0, err
	}
	if !before.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%w: it is no regular file but %v", ErrCorrupt, before.Mode())
	}
	f, err := v.Root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	after, err := f.Stat()
	if err != nil || !os.SameFile(before, after) {
		f.Close()
		return nil, 0, errors.Join(errReplaced, err)
	}
	return f, after.Size(), nil
}

// ReadDir opens by the path where it can: a client looks at a directory's age when its name is
// looked up, not when one that is open is read.
func (v *osVolume) ReadDir(name string) ([]fs.DirEntry, error) {
	open := v.Root.Open
	if name == "." {
		open, name = os.Open, v.path
	}
	d, err := open(name + asDir)
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
