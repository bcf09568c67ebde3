package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// ErrRemoved is the error of a store whose directory, or a file that it needs, was removed or
// replaced while it was open. Acknowledged events may be missing after a restart.
var ErrRemoved = errors.New("removed or replaced while the store was open: find the cause, and restore the directory from a backup if files are missing")

// watchInterval is the time between two checks of Watch.
const watchInterval = 250 * time.Millisecond

// Watch checks, until Close, that the directory is still this store's. If it is not, the log fails:
// Sync returns ErrRemoved, and gone is called with that error, from a goroutine of the Disk. On
// Linux the log itself detects that its current file was removed at the next sync; Watch detects
// the rest, even while nothing is written. For a Replica, gone is called when another process
// has taken over.
func (d *Disk) Watch(gone func(error)) {
	if d.replica != nil {
		d.wg.Go(func() {
			select {
			case <-d.replica.Failed:
				gone(d.log.Sync(0))
			case <-d.stop:
			}
		})
		return
	}
	d.wg.Go(func() {
		ticker := time.NewTicker(watchInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-d.stop:
				return
			}
			if err := d.checkPresent(); err != nil {
				d.log.Fail(err)
				gone(err)
				return
			}
		}
	})
}

// checkPresent returns ErrRemoved if a file that a start needs is missing, or if the lock file is
// not the one that this process has locked: another process may then have the directory. An error
// of a check is not evidence that a file is missing.
func (d *Disk) checkPresent() error {
	gone := func(name string) error {
		return fmt.Errorf("durable: %s: %w", filepath.Join(d.dir, name), ErrRemoved)
	}
	held, err := d.lockFile.Stat()
	if err != nil {
		return nil //nolint:nilerr // see above: no evidence
	}
	switch is, err := os.Stat(filepath.Join(d.dir, lockName)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(held, is):
		return gone(lockName)
	}
	if _, err := os.Stat(CheckpointOf(d.dir)); errors.Is(err, fs.ErrNotExist) {
		return gone(checkpointName)
	}
	if name := d.journal.Missing(); name != "" {
		return gone(filepath.Base(name))
	}
	return nil
}
