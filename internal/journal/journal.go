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
	// batchBytes is from where on a batch is closed: a longer one would save no time, and Open holds one in memory.
	batchBytes = 1 << 20
	// spareBytes is the most that a buffer may have to be used again.
	spareBytes = 4 << 20
)

// Options of a journal. The zero value is good.
type Options struct {
	FS     FS           // nil: the operating system's
	Logger *slog.Logger // told of what Open cuts off; nil: nobody
	// Wrote, if it is not nil, is told how long each write took until it was on the disk. It is not called by two goroutines at once.
	Wrote func(took time.Duration)
	Ahead int // up to so many zeros are written ahead, for faster syncs; 0: 1 MiB; 1: none
}

// Journal is an open log. It owns no goroutine: who syncs writes, for all who wait.
// All methods may be called by several goroutines.
type Journal struct {
	fs    FS
	dir   string
	store uint64
	ahead int64
	wrote func(took time.Duration)
	base  uint64 // a record's sequence is base and its position

	turn chan struct{} // has one value; who takes it may do I/O, and puts it back
	seg  segment       // of whoever has the turn

	durable atomic.Uint64             // position; changed with the turn and mu
	writing atomic.Pointer[time.Time] // when the write that is under way began; nil if there is none

	mu     sync.Mutex // protects the fields below; not held during I/O
	queue  []*batch   // in order; the last may be open for more
	pos    uint64     // of the last record
	number uint64     // of the segment that the next record is for
	fresh  bool       // there is none for it yet
	live   []extent   // the segments that there are, in order
	spare  []byte
	err    error // for ever
}

// batch is what goes out in one write.
type batch struct {
	buf     []byte // room for the head, then records; of the writer when it is taken
	segment uint64
	last    uint64 // position
	count   uint32
	taken   bool
	done    chan struct{} // closed when it is durable, or err is set
	err     error
}

// extent is how much is in a segment.
type extent struct {
	number uint64
	bytes  int64
}

// Append adds the record that f appends to its argument, in memory, and returns its position:
// 1 for the first since Open. f is called at once, with a lock held. A failed journal drops it.
func (j *Journal) Append(f func(b []byte) []byte) (pos uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		j.pos++
		return j.pos
	}
	b := j.open()
	start := len(b.buf) + recordLen
	buf := f(append(b.buf, 0, 0, 0, 0))
	n := len(buf) - start
	if n > MaxRecord {
		j.failLocked(fmt.Errorf("journal: a record of %d bytes, more than %d", n, MaxRecord))
		j.pos++
		return j.pos
	}
	binary.LittleEndian.PutUint32(buf[start-recordLen:], uint32(n))
	j.pos++
	b.buf, b.last, b.count = buf, j.pos, b.count+1
	j.fresh = false
	return j.pos
}

// open returns the batch that the next record goes to. Called with mu.
func (j *Journal) open() *batch {
	if n := len(j.queue); n > 0 {
		if b := j.queue[n-1]; !b.taken && b.segment == j.number && len(b.buf) < batchBytes {
			return b
		}
	}
	if j.spare == nil {
		j.spare = make([]byte, 0, 4<<10)
	}
	b := &batch{buf: j.spare[:headLen], segment: j.number, last: j.pos, done: make(chan struct{})}
	j.spare = nil
	j.queue = append(j.queue, b)
	return b
}

// Sync returns when the record at pos, and all before it, are durable. One caller writes whatever was
// appended; those who come meanwhile wait, and one of them goes on. If writing has failed once, and after
// Close, it returns that error for every position, the durable ones too: nobody is to go on.
func (j *Journal) Sync(pos uint64) error {
	b, err := j.find(pos)
	if b == nil {
		return err
	}
	select {
	case <-b.done:
	case <-j.turn:
		j.commit(b)
		j.turn <- struct{}{}
	}
	return b.err
}

// find returns the batch that pos is in, or none if pos is durable or the journal has failed.
func (j *Journal) find(pos uint64) (*batch, error) {
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

// Durable returns the position up to which all is durable.
func (j *Journal) Durable() uint64 { return j.durable.Load() }

// Progress changes with everything that becomes durable.
func (j *Journal) Progress() uint64 { return j.Durable() }

// Unsynced returns how many bytes have been appended that are not durable.
func (j *Journal) Unsynced() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, b := range j.queue {
		n += int64(len(b.buf))
	}
	return n
}

// Writing returns how long the write that is under way has taken, until it is durable; 0 if there is none.
func (j *Journal) Writing() time.Duration {
	if began := j.writing.Load(); began != nil {
		return max(1, time.Since(*began))
	}
	return 0
}

// Rotate begins a new segment, unless there is no record in this one yet, and returns its number: records
// appended from now on are in it. It does no I/O: the file is made by the Sync that needs it, or by Begin.
func (j *Journal) Rotate() (segment uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.fresh {
		j.number++
		j.fresh = true
	}
	return j.number
}

// Size returns how many bytes are in the segments that have not been removed, without zeros.
func (j *Journal) Size() (n int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.live {
		n += e.bytes
	}
	return n
}

// Begin makes a segment that Rotate has returned, durable, after what is in those before it. A checkpoint may name it from
// then on.
func (j *Journal) Begin(segment uint64) error {
	<-j.turn
	defer func() { j.turn <- struct{}{} }()
	return j.begun(segment)
}

// Missing returns the name of a segment that the log has, and that is not in the directory, or nothing.
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

// names returns those of the segments.
func (j *Journal) names() (names []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range j.live {
		names = append(names, segmentName(j.dir, e.number))
	}
	return names
}

// Fail ends the log with an error, as a write that fails does, unless it has failed already.
func (j *Journal) Fail(err error) { j.fail(err) }

// Remove removes the segments before one that Rotate has returned, when a durable checkpoint has what is
// in them. It does what Begin does first.
func (j *Journal) Remove(before uint64) error {
	old, err := j.leave(before)
	if err != nil {
		return err
	}
	for _, e := range old {
		name := segmentName(j.dir, e.number)
		if err := j.fs.Remove(name); err != nil {
			return named("remove", name, err) // the next Open will do it
		}
	}
	return named("sync", j.dir, j.fs.SyncDir(j.dir))
}

// Close makes all durable that was appended, and the mark behind it, and closes the log. What is appended later is dropped.
func (j *Journal) Close() error {
	err := j.Sync(math.MaxUint64)
	<-j.turn
	defer func() { j.turn <- struct{}{} }()
	if errors.Is(err, ErrClosed) {
		return nil
	}
	j.fail(ErrClosed)
	if err == nil {
		err = named("sync", j.seg.name, j.seg.file.Sync())
	}
	if e := j.seg.close(); err == nil {
		err = e
	}
	return err
}

// fail is the end: what waits, and all that comes, gets err.
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
