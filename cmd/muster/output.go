package main

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// output is a file that gets its name when it is complete. Until then it has a temporary name in the
// same directory, and a lock, which the kernel releases when the process ends. What a process that was
// killed has left there is removed by the next one that writes to path.
type output struct {
	*os.File   // Write is overridden: its errors contain path
	path, part string
	force      bool // whether to replace an existing file
}

const partSuffix = ".part"

func partPrefix(path string) string { return "." + filepath.Base(path) + "-" }

// createOutput creates the file. Its temporary name is random, and never that of a file that exists:
// other users may write to the directory, too.
func createOutput(path string, mode fs.FileMode, force bool) (*output, error) {
	removeLeft(path)
	o := &output{path: path, force: force}
	for {
		var err error
		o.part = filepath.Join(filepath.Dir(path), partPrefix(path)+rand.Text()+partSuffix)
		if o.File, err = os.OpenFile(o.part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); err != nil {
			return nil, o.wrong("create", err)
		}
		_ = syscall.Flock(int(o.Fd()), syscall.LOCK_EX) // without locks nobody removes the file, either
		if _, err := os.Lstat(o.part); err == nil {
			return o, nil
		}
		_ = o.Close() // another process has removed the file before it had the lock
	}
}

// removeLeft removes the files for path that no process writes to.
func removeLeft(path string) {
	dir := filepath.Dir(path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), partPrefix(path)) || !strings.HasSuffix(e.Name(), partSuffix) {
			continue
		}
		part := filepath.Join(dir, e.Name())
		f, err := os.Open(part)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
			_ = os.Remove(part)
		}
		_ = f.Close()
	}
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
