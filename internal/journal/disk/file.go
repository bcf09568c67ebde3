package disk

import (
	"io"
	"io/fs"
	"syscall"

	"github.com/muster-pg/muster/internal/journal"
)

var _ journal.FS = (*Disk)(nil)

// sector is what the disk writes whole or not at all.
const sector = 512

// inode is a file.
type inode struct {
	now       []byte       // what readers see
	kept      []byte       // what is durable; zeros behind it
	size      int          // that is durable
	low, high int          // sizes since it was synced
	dirty     map[int]bool // sectors of now that differ from those of kept
}

// writeBack brings sector k to the disk.
func (n *inode) writeBack(k int) {
	end := (k + 1) * sector
	if len(n.kept) < end {
		n.kept = append(n.kept, make([]byte, end-len(n.kept))...)
	}
	clear(n.kept[k*sector : end])
	if k*sector < len(n.now) {
		copy(n.kept[k*sector:end], n.now[k*sector:])
	}
}

// keep makes the size durable, when all sectors are.
func (n *inode) keep() {
	n.kept = n.kept[:min(len(n.kept), len(n.now))]
	n.size, n.low, n.high = len(n.now), len(n.now), len(n.now)
	n.dirty = map[int]bool{}
}

// write changes what readers see. What the sectors were before may be on the disk already.
func (n *inode) write(d *Disk, b []byte, off int) {
	end := off + len(b)
	for k := off / sector; k*sector < end; k++ {
		if n.dirty[k] && d.coin() {
			n.writeBack(k)
		}
		n.dirty[k] = true
	}
	if len(n.now) < end {
		n.now = append(n.now, make([]byte, end-len(n.now))...)
	}
	n.high = max(n.high, end)
	copy(n.now[off:], b)
}

// truncate makes the file shorter.
func (n *inode) truncate(size int) {
	for k := size / sector; k*sector < max(len(n.now), len(n.kept)); k++ {
		n.dirty[k] = true
	}
	n.now = n.now[:min(size, len(n.now))]
	n.low = min(n.low, len(n.now))
}

// sync brings all to the disk, or what chance takes.
func (n *inode) sync(d *Disk, all bool) {
	for k := 0; len(n.dirty) > 0; k++ { // in order: chance is to be the same each time
		if n.dirty[k] && (all || d.coin()) {
			n.writeBack(k)
		}
		delete(n.dirty, k)
	}
	if all {
		n.keep()
	}
}

func (n *inode) crash(d *Disk) {
	n.sync(d, false)
	low, high := min(n.low, n.size), max(n.high, n.size)
	size := low + d.rng.IntN(high-low+1)
	switch d.rng.IntN(3) { // the likely ones
	case 0:
		size = n.size
	case 1:
		size = len(n.now)
	}
	if len(n.kept) < size {
		n.kept = append(n.kept, make([]byte, size-len(n.kept))...)
	}
	n.kept = n.kept[:size]
	n.now = append(n.now[:0], n.kept...)
	n.keep()
}

// file is an open file.
type file struct {
	d    *Disk
	n    *inode
	life int
}

// lock locks the disk, if there is power and the file is open: the caller unlocks it in any case.
func (f *file) lock() error {
	f.d.mu.Lock()
	switch {
	case f.life != f.d.life:
		return fs.ErrClosed
	case f.d.off:
		return ErrPower
	}
	return nil
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	err := f.lock()
	defer f.d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.now)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.now[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	err := f.lock()
	defer f.d.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if due(&f.d.write) {
		half := max(0, (int(off)+len(b)/2)/sector*sector-int(off))
		f.n.write(f.d, b[:half], int(off))
		return half, syscall.ENOSPC
	}
	f.n.write(f.d, b, int(off))
	return len(b), f.d.step()
}

func (f *file) Sync() error {
	err := f.lock()
	defer f.d.mu.Unlock()
	if err == nil {
		err = f.d.step()
	}
	if err != nil {
		return err
	}
	f.d.syncs++
	if due(&f.d.sync) {
		f.n.sync(f.d, false)
		return syscall.EIO
	}
	f.n.sync(f.d, true)
	return nil
}

func (f *file) Truncate(size int64) error {
	err := f.lock()
	defer f.d.mu.Unlock()
	if err != nil {
		return err
	}
	f.n.truncate(int(size))
	return f.d.step()
}

func (f *file) Size() (int64, error) {
	err := f.lock()
	defer f.d.mu.Unlock()
	return int64(len(f.n.now)), err
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.life = -1
	return nil
}
