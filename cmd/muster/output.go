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
// same directory, .NAME-RANDOM.part, and a lock, which the kernel releases when the process ends. What a
// process that was killed has left there is removed by the next one that writes to path. Others may write
// to the directory too: only names of this form are touched, and nothing there makes it wait.
type output struct {
	*os.File   // Write is overridden: its errors contain path
	path, part string
	force      bool // whether to replace an existing file
}

const partSuffix = ".part"

// partPrefix returns what is before the random part, of which a long name is cut: 255 bytes are the limit.
func partPrefix(path string) string {
	name := filepath.Base(path)
	if most := 255 - len("."+"-"+partSuffix) - len(rand.Text()); len(name) > most {
		name = strings.ToValidUTF8(name[:most], "")
	}
	return "." + name + "-"
}

// isPart reports whether a name is a temporary one of path.
func isPart(name, path string) bool {
	random, ok := strings.CutPrefix(name, partPrefix(path))
	random, ends := strings.CutSuffix(random, partSuffix)
	return ok && ends && len(random) == len(rand.Text()) && strings.Trim(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}

// createOutput creates the file. Its temporary name is never that of a file that exists.
func createOutput(path string, mode fs.FileMode, force bool) (*output, error) {
	removeLeft(path)
	o := &output{path: path, force: force}
	for {
		var err error
		o.part = filepath.Join(filepath.Dir(path), partPrefix(path)+rand.Text()+partSuffix)
		if o.File, err = os.OpenFile(o.part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); err != nil {
			return nil, o.wrong("create", err)
		}
		held := syscall.Flock(int(o.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // where there are no locks, nobody removes the file
		if _, err := os.Lstat(o.part); err == nil && !errors.Is(held, syscall.EWOULDBLOCK) {
			return o, nil
		}
		o.discard() // another process was about to remove the file
	}
}

// removeLeft removes the files for path that no process writes to.
func removeLeft(path string) {
	dir := filepath.Dir(path)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if !e.Type().IsRegular() || !isPart(e.Name(), path) {
			continue
		}
		part := filepath.Join(dir, e.Name())
		f, err := os.OpenFile(part, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
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
