package main

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// output is a file that gets its name when it is complete. Until then it has a temporary name in the
// same directory, .muster-RANDOM.part, which stays there if the process is killed.
type output struct {
	*os.File   // Write is overridden: its errors contain path
	path, part string
	force      bool // whether to replace an existing file
}

func createOutput(path string, mode fs.FileMode, force bool) (*output, error) {
	o := &output{path: path, part: filepath.Join(filepath.Dir(path), ".muster-"+rand.Text()+".part"), force: force}
	var err error
	if o.File, err = os.OpenFile(o.part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); err != nil {
		return nil, o.wrong("create", err)
	}
	return o, nil
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if err != nil {
		err = o.wrong("write", err)
	}
	return n, err
}

// writeOutput replaces the file at path, when write has written all of it.
func writeOutput(path string, write func(io.Writer) error) error {
	o, err := createOutput(path, 0o666, true)
	if err != nil {
		return err
	}
	defer o.discard() // does nothing after a commit
	if err := write(o); err != nil {
		return err
	}
	return o.commit()
}

// cause returns the error of the operating system in err.
func cause(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// commit makes the file durable and gives it its name.
func (o *output) commit() error {
	if err := o.Sync(); err != nil {
		return o.wrong("sync", err)
	}
	if err := o.name(); err != nil {
		return o.wrong("name", err)
	}
	if err := o.Close(); err != nil { // NFS may report a failed write only now
		return o.wrong("close", err)
	}
	return syncDirectory(filepath.Dir(o.path))
}

// name gives the file its name. Unless force is set it uses a link, which fails if the name exists.
func (o *output) name() error {
	if o.force {
		return os.Rename(o.part, o.path)
	}
	err := os.Link(o.part, o.path)
	if err == nil {
		return os.Remove(o.part)
	}
	if _, there := os.Lstat(o.path); errors.Is(there, fs.ErrNotExist) {
		return os.Rename(o.part, o.path) // a file system without links
	}
	return err
}

func (o *output) wrong(op string, err error) error {
	return &fs.PathError{Op: op, Path: o.path, Err: cause(err)}
}

// discard removes a file that has not been committed.
func (o *output) discard() {
	_ = o.Close()
	_ = os.Remove(o.part)
}

func syncDirectory(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	_ = d.Close() // it was only read
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil // some file systems do not support this
	}
	return err
}
