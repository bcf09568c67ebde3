package doctor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// directory checks --dir from this process alone.
func (d *Doctor) directory(context.Context, *process) []Finding {
	if d.Dir == "" {
		return nil
	}
	st, err := os.Stat(d.Dir)
	switch {
	case err != nil:
		return []Finding{problem(fmt.Sprintf("%s: %s", d.Dir, innermost(err)), "make it, or mount what should be there")}
	case !st.IsDir():
		return []Finding{problem(d.Dir+" is not a directory", "name one")}
	}
	if err := publish(filepath.Join(d.Dir, "muster-doctor-"+rand.Text())); err != nil {
		return []Finding{problem(fmt.Sprintf("%s: %s", d.Dir, failure(err)), "is it mounted read-only, full, or another user's?")}
	}
	return []Finding{ok("%s: files are written, synced and renamed", d.Dir)}
}

// failure describes an error of a file without the name, which is that of a temporary file.
func failure(err error) string {
	if e, isPath := errors.AsType[*fs.PathError](err); isPath {
		return e.Op + ": " + e.Err.Error()
	}
	if e, isLink := errors.AsType[*os.LinkError](err); isLink {
		return e.Op + ": " + e.Err.Error()
	}
	return err.Error()
}

// publish writes, syncs, renames, reads and removes a file, as programs do that publish a state.
func publish(path string) error {
	defer os.Remove(path)
	for _, version := range []byte{1, 2} {
		if err := replace(path, content(version)); err != nil {
			return err
		}
	}
	got, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(got, content(2)) {
		err = errors.New("what was read is not what was written")
	}
	return err
}

// replace replaces the content of path atomically.
func replace(path string, b []byte) error {
	part := path + ".part"
	if err := write(part, b); err != nil {
		_ = os.Remove(part)
		return err
	}
	return os.Rename(part, path)
}

// write creates or overwrites a file, and syncs it.
func write(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// content returns the content of a test file, one byte many times, which shows whether the file is
// complete.
func content(version byte) []byte { return bytes.Repeat([]byte{version}, 64<<10) }
