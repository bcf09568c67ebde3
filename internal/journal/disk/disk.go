// Package disk is a file system in memory that loses power: a journal.FS for tests.
//
// What was written and not synced survives Crash in any part, by sectors of 512 bytes, in any of
// the versions that the sectors had; a file may have any size that it has had, or one between; files
// that were made or removed may be there or not. A sync that fails leaves the bytes where readers see
// them, calls them clean, and has brought any part of them to the disk, as Linux does.
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

// ErrPower is what all fails with between the power failure and Crash.
var ErrPower = errors.New("disk: no power")

// never is how many steps it is to something that is not going to happen.
const never = -1

// Disk is the file system.
type Disk struct {
	mu    sync.Mutex // protects all that follows, and the inodes
	rng   *rand.Rand
	now   map[string]*inode // the directory entries that are seen
	kept  map[string]*inode // those that are durable
	life  int               // how many crashes there were: files that were open then are closed
	off   bool              // no power
	power int               // changes until the power fails
	write int               // writes until one fails
	sync  int               // syncs until one fails
	syncs int
}

// New returns an empty disk. Chance is rng's.
func New(rng *rand.Rand) *Disk {
	return &Disk{
		rng: rng, now: map[string]*inode{}, kept: map[string]*inode{},
		power: never, write: never, sync: never,
	}
}

// CutPower makes the power fail during the nth change from now on: the first is 0.
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

// Syncs returns how many syncs of files there were.
func (d *Disk) Syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Crash is a power failure, if there was none, and the start after it. No fault waits any more.
func (d *Disk) Crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.off, d.power, d.write, d.sync = false, never, never, never
	after := map[string]*inode{}
	for _, name := range d.names() {
		now, kept := d.now[name], d.kept[name]
		if d.coin() {
			now = kept
		}
		if now != nil {
			after[name] = now
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		after[name].crash(d)
	}
	d.now, d.kept = after, maps.Clone(after)
}

// names returns all that there may be, sorted: chance is to be the same each time.
func (d *Disk) names() []string {
	all := maps.Clone(d.now)
	maps.Copy(all, d.kept)
	return slices.Sorted(maps.Keys(all))
}

// Files returns what is in the files that are seen, by name.
func (d *Disk) Files() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	files := map[string][]byte{}
	for name, n := range d.now {
		files[name] = slices.Clone(n.now)
	}
	return files
}

// Put makes a file with data in it, durable, in place of one that there may be.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &inode{now: slices.Clone(data), kept: slices.Clone(data)}
	n.keep()
	d.now[name], d.kept[name] = n, n
}

// Delete removes a file, for good.
func (d *Disk) Delete(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.now, name)
	delete(d.kept, name)
}

func (d *Disk) coin() bool { return d.rng.IntN(2) == 0 }

// step counts a change, and fails if the power does during it, or has before.
func (d *Disk) step() (err error) {
	if d.off || due(&d.power) {
		d.off = true
		return ErrPower
	}
	return nil
}

// due counts down to 0, and reports whether it is there.
func due(steps *int) bool {
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
	if d.now[name] != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EEXIST}
	}
	d.now[name] = &inode{dirty: map[int]bool{}}
	return &file{d, d.now[name], d.life}, d.step()
}

// Open opens a file.
func (d *Disk) Open(name string) (journal.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch n := d.now[name]; {
	case d.off:
		return nil, ErrPower
	case n == nil:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	default:
		return &file{d, n, d.life}, nil
	}
}

// Remove removes a file.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.off:
		return ErrPower
	case d.now[name] == nil:
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOENT}
	}
	delete(d.now, name)
	return d.step()
}

// Rename gives a file another name, in place of one that has it.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.off:
		return ErrPower
	case d.now[from] == nil:
		return &fs.PathError{Op: "rename", Path: from, Err: syscall.ENOENT}
	}
	d.now[to] = d.now[from]
	delete(d.now, from)
	return d.step()
}

// ReadDir returns the names of the files in dir, sorted.
func (d *Disk) ReadDir(dir string) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	for name := range d.now {
		if filepath.Dir(name) == filepath.Clean(dir) {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// SyncDir makes durable which files there are in dir.
func (d *Disk) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step(); err != nil {
		return err
	}
	for _, name := range d.names() {
		if filepath.Dir(name) != filepath.Clean(dir) {
			continue
		}
		delete(d.kept, name)
		if n := d.now[name]; n != nil {
			d.kept[name] = n
		}
	}
	return nil
}
