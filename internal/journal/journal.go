package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// batchBytes is the size from which on a batch is closed: a longer one would save no time, and
	// Open reads a batch into memory.
	batchBytes = 1 << 20
	// spareBytes is the largest buffer that is used again.
	spareBytes = 4 << 20
)

// Options configures a journal. The zero value is valid.
type Options struct {
	FS     FS           // default: the operating system's
	Logger *slog.Logger // for what Open cuts off; default: discards
	// OnWrite, if not nil, is called with the duration of each write, including its sync; never by
	// two goroutines at once.
	OnWrite     func(took time.Duration)
	Preallocate int // zero bytes that are written ahead, for faster syncs; default 1 MiB
}

// Journal is an open log. It owns no goroutine: one of the goroutines in Sync writes, for all that
// wait (group commit). Methods may be called by several goroutines at once.
type Journal struct {
	fs          FS
	dir         string
	store       uint64
	preallocate int64
	onWrite     func(took time.Duration)
	base        uint64 // the sequence number of an entry is base plus its position

	sem chan struct{} // holds one value; the goroutine that takes it may do I/O, and puts it back
	seg segment       // guarded by sem

	durable atomic.Uint64             // position; changed with sem and mu
	writing atomic.Pointer[time.Time] // when the current write began; nil if there is none

	mu           sync.Mutex // protects the fields below; not held during I/O
	queue        []*batch   // in order; the last batch may accept more entries
	pos          uint64     // position of the last entry
	segment      uint64     // segment of the next entry
	segmentEmpty bool       // no entry of segment has been appended
	segments     []extent   // the existing segments, in order
	spare        []byte
	err          error // set once
}

// batch is a group of entries that one write and one sync make durable.
type batch struct {
	buf     []byte // space for the head, then entries; owned by the writer when taken
	segment uint64
	last    uint64 // position of the last entry
	count   uint32
	taken   bool          // closed for further entries
	done    chan struct{} // closed when the batch is durable, or err is set
	err     error
}

// extent is the number of bytes in a segment.
type extent struct {
	number uint64
	bytes  int64
}

// Append adds the entry that f appends to its argument, in memory, and returns its position: 1 for
// the first since Open. f is called before Append returns, with a lock held. A journal that has
// failed drops the entry.
func (j *Journal) Append(f func(b []byte) []byte) (pos uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		j.pos++
		return j.pos
	}
	b := j.openBatch()
	start := len(b.buf) + entryLen
	buf := f(append(b.buf, 0, 0, 0, 0))
	n := len(buf) - start
	if n > MaxEntry {
		j.failLocked(fmt.Errorf("journal: an entry of %d bytes, more than %d", n, MaxEntry))
		j.pos++
		return j.pos
	}
	binary.LittleEndian.PutUint32(buf[start-entryLen:], uint32(n))
	j.pos++
	b.buf, b.last, b.count = buf, j.pos, b.count+1
	j.segmentEmpty = false
	return j.pos
}

// openBatch returns the batch that the next entry goes to. The caller holds mu.
func (j *Journal) openBatch() *batch {
	if n := len(j.queue); n > 0 {
		if b := j.queue[n-1]; !b.taken && b.segment == j.segment && len(b.buf) < batchBytes {
			return b
		}
	}
	if j.spare == nil {
		j.spare = make([]byte, 0, 4<<10)
	}
	b := &batch{buf: j.spare[:headLen], segment: j.segment, last: j.pos, done: make(chan struct{})}
	j.spare = nil
	j.queue = append(j.queue, b)
	return b
}

// Sync returns when the entry at pos, and all before it, are durable. One caller writes all
// entries that were appended; others wait meanwhile, and one of them writes next. After a write has
// failed, and after Close, Sync returns that error for every position, also for those that are
// durable: the caller must stop.
func (j *Journal) Sync(pos uint64) error {
	b, err := j.batchOf(pos)
	if b == nil {
		return err
	}
	select {
	case <-b.done:
	case <-j.sem:
		j.commit(b)
		j.sem <- struct{}{}
	}
	return b.err
}

// batchOf returns the batch of pos, or nil if pos is durable or the journal has failed.
func (j *Journal) batchOf(pos uint64) (*batch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	pos = min(pos, j.pos)
	if j.err != nil || pos <= j.durable.Load() {
		return nil, j.err
	}
	i, _ := slices.BinarySearchFunc(j.queue, pos, func(b *batch, pos uint64) int {
		if b.last < pos {
			return -1
		}
		return 1
	})
	return j.queue[i], nil
}

// Durable returns the position up to which all entries are durable.
func (j *Journal) Durable() uint64 { return j.durable.Load() }

// Unsynced returns the number of bytes that were appended and are not durable.
func (j *Journal) Unsynced() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.queue {
		n += int64(len(b.buf))
	}
	return n
}

// Writing returns for how long the current write has taken, sync included; 0 if there is none.
func (j *Journal) Writing() time.Duration {
	if began := j.writing.Load(); began != nil {
		return max(1, time.Since(*began))
	}
	return 0
}

// Rotate begins a new segment, unless the current one has no entry yet, and returns its number:
// entries that are appended from now on are in it. It does no I/O: the next Sync, or Begin, creates
// the file.
func (j *Journal) Rotate() (segment uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.segmentEmpty {
		j.segment++
		j.segmentEmpty = true
	}
	return j.segment
}

// Size returns the number of bytes in the segments that have not been removed, without zeros
// written ahead.
func (j *Journal) Size() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.segments {
		n += e.bytes
	}
	return n
}

// Begin makes all appended entries durable, and then creates a segment that Rotate has returned,
// durable. From then on a checkpoint may name it.
func (j *Journal) Begin(segment uint64) error {
	<-j.sem
	defer func() { j.sem <- struct{}{} }()
	return j.ensureSegment(segment)
}

// Missing returns the name of a segment of the log that is not in the directory, or "".
func (j *Journal) Missing() (name string) {
	before := j.names()
	there, err := j.fs.ReadDir(j.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	for _, name := range j.names() {
		if slices.Contains(before, name) && !slices.Contains(there, filepath.Base(name)) {
			return name
		}
	}
	return ""
}

// names returns the names of the segments.
func (j *Journal) names() (names []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.segments {
		names = append(names, segmentName(j.dir, e.number))
	}
	return names
}

// Fail makes the log fail with err, as a failed write does. It has no effect if the log has failed
// before.
func (j *Journal) Fail(err error) { j.fail(err) }

// Remove removes the segments before one that Rotate has returned. A durable checkpoint must have
// their content. Remove does first what Begin does.
func (j *Journal) Remove(before uint64) error {
	old, err := j.detachBefore(before)
	if err != nil {
		return err
	}
	for _, e := range old {
		name := segmentName(j.dir, e.number)
		if err := j.fs.Remove(name); err != nil {
			return fileError("remove", name, err) // the next Open removes it
		}
	}
	return fileError("sync", j.dir, j.fs.SyncDir(j.dir))
}

// Close makes all appended entries durable, and the mark behind them, and closes the log. Entries
// that are appended later are dropped.
func (j *Journal) Close() error {
	err := j.Sync(math.MaxUint64)
	<-j.sem
	defer func() { j.sem <- struct{}{} }()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	j.fail(ErrClosed)
	if err == nil {
		err = fileError("sync", j.seg.name, j.seg.file.Sync())
	}
	if e := j.seg.close(); err == nil {
		err = e
	}
	return err
}

// fail sets the final error, for all goroutines that wait and all later calls.
func (j *Journal) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failLocked(err)
}

func (j *Journal) failLocked(err error) {
	if j.err != nil {
		return
	}
	j.err = err
	for _, b := range j.queue {
		b.err = err
		close(b.done)
	}
	j.queue, j.spare = nil, nil
}
