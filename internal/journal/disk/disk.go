// Package disk is a file system in memory with power failures: a journal.FS for tests.
//
// Of what was written and not synced, Crash keeps any part, by sectors of 512 bytes, in any version
// that the sectors had. A file may have any size that it has had, or one between; a name may be any
// file that it was, or none if it did not exist for a while. As on Linux, a sync that fails leaves the bytes visible to
// readers, considers them clean, and has brought any part of them to the disk.
package disk

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/muster-pg/muster/internal/journal"
)

// ErrPower is the error of all operations between the power failure and Crash.
var ErrPower = errors.New("disk: no power")

// never is the countdown of a fault that is not planned.
const never = -1

// Disk is the file system.
type Disk struct {
	mu  sync.Mutex // protects the fields below, and the inodes
	rng *rand.Rand
	// What each name may be after a crash: the durable file, and each one since; the last is visible.
	// nil is no file.
	entries map[string][]*inode
	epoch   int  // number of crashes: files opened before the last one are closed
	off     bool // no power
	power   int  // changes until the power fails
	write   int  // writes until one fails
	sync    int  // syncs until one fails
	syncs   int
}

// New returns an empty disk. rng decides what a crash keeps.
func New(rng *rand.Rand) *Disk {
	return &Disk{rng: rng, entries: map[string][]*inode{}, power: never, write: never, sync: never}
}

// CutPower makes the power fail during the nth change from now on, counted from 0.
func (d *Disk) CutPower(n int) { d.set(&d.power, n) }

// FailWrite makes the nth write from now on stop halfway, between two sectors, with ENOSPC.
func (d *Disk) FailWrite(n int) { d.set(&d.write, n) }

// FailSync makes the nth sync of a file from now on fail with EIO.
func (d *Disk) FailSync(n int) { d.set(&d.sync, n) }

func (d *Disk) set(steps *int, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*steps = n
}

// Syncs returns the number of syncs of files.
func (d *Disk) Syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Crash is a power failure, if there was none, and the following start. It cancels planned faults.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.epoch++
	d.off, d.power, d.write, d.sync = false, never, never, never
	for _, name := range slices.Sorted(maps.Keys(d.entries)) { // so that a seed gives the same run each time
		states := d.entries[name]
		n := states[d.rng.IntN(len(states))]
		if d.settle(name, n); n != nil {
			n.crash(d)
		}
	}
}

// settle makes n what name is after a crash.
func (d *Disk) settle(name string, n *inode) {
	if n == nil {
		delete(d.entries, name)
	} else {
		d.entries[name] = []*inode{n}
	}
}

// visible returns the file called name, nil if there is none.
func (d *Disk) visible(name string) *inode {
	if states := d.entries[name]; states != nil {
		return states[len(states)-1]
	}
	return nil
}

// enter makes n the visible file called name.
func (d *Disk) enter(name string, n *inode) {
	if d.entries[name] == nil {
		d.entries[name] = []*inode{nil}
	}
	d.entries[name] = append(d.entries[name], n)
}

// Files returns the visible content of the files, by name.
func (d *Disk) Files() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string][]byte{}
	for name := range d.entries {
		if n := d.visible(name); n != nil {
			files[name] = slices.Clone(n.current)
		}
	}
	return files
}

// Put creates or replaces a file with data, durably.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &inode{current: slices.Clone(data), durable: slices.Clone(data)}
	n.markDurable()
	d.settle(name, n)
}

// Delete removes a file, durably.
func (d *Disk) Delete(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settle(name, nil)
}

func (d *Disk) coin() bool { return d.rng.IntN(2) == 0 }

// step counts a change, and fails if the power has failed or fails now.
func (d *Disk) step() (err error) {
	if d.off || countDown(&d.power) {
		d.off = true
		return ErrPower
	}
	return nil
}

// countDown decrements steps, and reports whether the fault is due.
func countDown(steps *int) bool {
	if *steps == never {
		return false
	}
	*steps--
	return *steps == never
}

// Create makes a file.
func (d *Disk) Create(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	if d.visible(name) != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EEXIST}
	}
	n := &inode{dirty: map[int]bool{}}
	d.enter(name, n)
	return &file{d, n, d.epoch}, d.step()
}

// Open opens a file.
func (d *Disk) Open(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch n := d.visible(name); {
	case d.off:
		return nil, ErrPower
	case n == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	default:
		return &file{d, n, d.epoch}, nil
	}
}

// Remove removes a file.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.off:
		return ErrPower
	case d.visible(name) == nil:
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOENT}
	}
	d.enter(name, nil)
	return d.step()
}

// Rename renames a file, and replaces an existing one.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.visible(from)
	switch {
	case d.off:
		return ErrPower
	case n == nil:
		return &fs.PathError{Op: "rename", Path: from, Err: syscall.ENOENT}
	}
	d.enter(to, n)
	d.enter(from, nil)
	return d.step()
}

// ReadDir returns the names of the files in dir, sorted.
func (d *Disk) ReadDir(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	for name := range d.entries {
		if filepath.Dir(name) == filepath.Clean(dir) && d.visible(name) != nil {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// SyncDir makes the names of the files in dir durable.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	for name := range d.entries {
		if filepath.Dir(name) == filepath.Clean(dir) {
			d.settle(name, d.visible(name))
		}
	}
	return nil
}
