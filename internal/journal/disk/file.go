package disk

import (
	"io"
	"io/fs"
	"syscall"

	"github.com/muster-pg/muster/internal/journal"
)

var _ journal.FS = (*Disk)(nil)

// sector is the number of bytes that the disk writes atomically.
const sector = 512

// inode is a file.
type inode struct {
	current     []byte       // content that readers see
	durable     []byte       // durable content, followed by zeros
	durableSize int          // durable size
	low, high   int          // smallest and largest size since the last sync
	dirty       map[int]bool // sectors of current that may differ from durable
}

// writeBack makes sector k durable.
func (n *inode) writeBack(k int) {
	end := (k + 1) * sector
	if len(n.durable) < end {
		n.durable = append(n.durable, make([]byte, end-len(n.durable))...)
	}
	clear(n.durable[k*sector : end])
	if k*sector < len(n.current) {
		copy(n.durable[k*sector:end], n.current[k*sector:])
	}
}

// markDurable makes the size durable, when all sectors are.
func (n *inode) markDurable() {
	n.durable = n.durable[:min(len(n.durable), len(n.current))]
	n.durableSize, n.low, n.high = len(n.current), len(n.current), len(n.current)
	n.dirty = map[int]bool{}
}

// write changes what readers see. An earlier version of the sectors may reach the disk.
func (n *inode) write(d *Disk, b []byte, off int) {
	end := off + len(b)
	for k := off / sector; k*sector < end; k++ {
		if n.dirty[k] && d.coin() {
			n.writeBack(k)
		}
		n.dirty[k] = true
	}
	if len(n.current) < end {
		n.current = append(n.current, make([]byte, end-len(n.current))...)
	}
	n.high = max(n.high, end)
	copy(n.current[off:], b)
}

// truncate makes the file shorter.
func (n *inode) truncate(size int) {
	for k := size / sector; k*sector < max(len(n.current), len(n.durable)); k++ {
		n.dirty[k] = true
	}
	n.current = n.current[:min(size, len(n.current))]
	n.low = min(n.low, len(n.current))
}

// sync makes all sectors durable, or a random part of them.
func (n *inode) sync(d *Disk, all bool) {
	for k := 0; len(n.dirty) > 0; k++ { // in order, so that a seed gives the same run each time
		if n.dirty[k] && (all || d.coin()) {
			n.writeBack(k)
		}
		delete(n.dirty, k)
	}
	if all {
		n.markDurable()
	}
}

func (n *inode) crash(d *Disk) {
	n.sync(d, false)
	low, high := min(n.low, n.durableSize), max(n.high, n.durableSize)
	size := low + d.rng.IntN(high-low+1)
	switch d.rng.IntN(3) { // two of three times a likely size
	case 0:
		size = n.durableSize
	case 1:
		size = len(n.current)
	}
	if len(n.durable) < size {
		n.durable = append(n.durable, make([]byte, size-len(n.durable))...)
	}
	n.durable = n.durable[:size]
	n.current = append(n.current[:0], n.durable...)
	n.markDurable()
}

// file is an open file.
type file struct {
	d     *Disk
	n     *inode
	epoch int
}

// lock locks the disk, and fails if there is no power or the file is closed. The caller unlocks in
// any case.
func (f *file) lock() error {
	f.d.mu.Lock()
	switch {
	case f.epoch != f.d.epoch:
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
	if off >= int64(len(f.n.current)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.current[off:])
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
	if countDown(&f.d.write) {
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
	if countDown(&f.d.sync) {
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
	return int64(len(f.n.current)), err
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.epoch = -1
	return nil
}
