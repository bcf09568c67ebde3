package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrGone is why a store ends whose directory, or a file that it needs, was removed or replaced while it was open. What it
// acknowledged may not be there after a restart.
var ErrGone = errors.New("it was removed or replaced while the store was using it: find out by what, and restore the directory from a backup if it has lost files")

// lookAfter is how often Watch looks.
const lookAfter = 250 * time.Millisecond

// Watch looks after the directory until Close. Once it is not this store's any more, nothing more is durable: Sync returns an
// ErrGone, and gone is called with it, from a goroutine of the Disk's. The log itself notices at once that its file was removed, on Linux:
// Watch notices the rest, and what happens while nothing is written.
func (d *Disk) Watch(gone func(error)) {
	if d.replica != nil {
		d.running.Go(func() {
			select {
			case <-d.replica.Lost:
				gone(d.log.Sync(0))
			case <-d.stop:
			}
		})
		return
	}
	d.running.Go(func() {
		ticker := time.NewTicker(lookAfter)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-d.stop:
				return
			}
			if err := d.present(); err != nil {
				d.log.Fail(err)
				gone(err)
				return
			}
		}
	})
}

// present looks whether all that a start needs is in the directory still, and the lock is the file that this process has locked:
// otherwise another process may have the directory. What cannot be looked at is not taken for missing.
func (d *Disk) present() error {
	gone := func(name string) error {
		return fmt.Errorf("durable: %s: %w", filepath.Join(d.dir, name), ErrGone)
	}
	held, err := d.lock.Stat()
	if err != nil {
		return nil
	}
	switch is, err := os.Stat(filepath.Join(d.dir, lockName)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(held, is):
		return gone(lockName)
	}
	if _, err := os.Stat(filepath.Join(d.dir, checkpointName)); errors.Is(err, fs.ErrNotExist) {
		return gone(checkpointName)
	}
	if name := d.journal.Missing(); name != "" {
		return gone(filepath.Base(name))
	}
	return nil
}
