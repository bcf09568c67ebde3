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
	"time"
)

const littleDisk = 1 << 30

// directory looks at --dir by this process alone.
func (d *Doctor) directory(context.Context, *patient) []Finding {
	if d.Dir == "" {
		return nil
	}
	st, err := os.Stat(d.Dir)
	switch {
	case err != nil:
		return []Finding{problem(fmt.Sprintf("%s: %s", d.Dir, innermost(err)), "make it, or mount what should be there")}
	case !st.IsDir():
		return []Finding{problem(d.Dir+" is no directory", "name one")}
	}
	if err := publish(filepath.Join(d.Dir, "muster-doctor-"+rand.Text())); err != nil {
		return []Finding{problem(fmt.Sprintf("%s: %s", d.Dir, failure(err)), "is it mounted read-only, full, or another user's?")}
	}
	v, err := d.System.Volume(d.Dir)
	switch {
	case err != nil:
		return []Finding{warning("the free space is unknown: "+err.Error(), "look at \"df "+d.Dir+"\"")}
	case v.Free < littleDisk:
		return []Finding{warning(fmt.Sprintf("%s has %s free", d.Dir, bytesText(v.Free)), "remove what is old, or name another directory")}
	}
	kind := ""
	if v.Kind != "" {
		kind = " (" + v.Kind + ")"
	}
	return []Finding{ok("%s%s: files are written, synced and renamed", d.Dir, kind)}
}

// failure is an error of a file, without its name, which is nobody's.
func failure(err error) string {
	if e, isPath := errors.AsType[*fs.PathError](err); isPath {
		return e.Op + ": " + e.Err.Error()
	}
	if e, isLink := errors.AsType[*os.LinkError](err); isLink {
		return e.Op + ": " + e.Err.Error()
	}
	return err.Error()
}

// publish writes, syncs, renames over, reads and removes a file, as who publishes a state does.
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

// replace gives path new content, whole.
func replace(path string, b []byte) error {
	part := path + ".part"
	if err := write(part, b); err != nil {
		_ = os.Remove(part)
		return err
	}
	return os.Rename(part, path)
}

// write makes or overwrites a file, durably.
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

// content is a file that shows whether it is whole: one byte, many times.
func content(version byte) []byte { return bytes.Repeat([]byte{version}, 64<<10) }

// within reports whether an operation ended in time. The system may not let go of it, as of a file whose server is gone.
func within(ctx context.Context, d time.Duration, f func()) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
