package durable

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// A checkpoint is a bbolt file of four buckets, followed by a seal (seal.go).
//
//	meta     "incarnation": u64 · "segment": u64; written last
//	state    number u64, big-endian → a piece of core.State, as msgpack
//	values   number u64, big-endian → a piece of a large value
//	entries  key → revision u64 | expiry i64 | pieces u32 | value, or the number u64 of
//	         its first piece
//
// Large values are split into pieces, because bbolt puts up to five values into one page, and keeps
// a page in memory.
const (
	metaName    = "meta"
	stateName   = "state"
	valuesName  = "values"
	entriesName = "entries"
	// batch is how many entries are copied at once under the machine's lock: well below a
	// millisecond.
	batch = 1000
	// batchBytes bounds the bytes of values that are copied at once, and those of a transaction; a
	// single larger value exceeds it.
	batchBytes = 4 << 20
	// pieceBytes is the largest value that is put into bbolt.
	pieceBytes = 1 << 20
	// gcBytes is the number of bytes written after which the garbage collector runs, or a gcShare of
	// the heap if that is more: bbolt allocates a page of a large value separately, and the heap could
	// grow to twice the store's size before the next regular collection.
	gcBytes, gcShare = 8 << 20, 16
)

// save writes a snapshot as a checkpoint, and replaces the previous one. That of a Replica is in a
// temporary directory, which the caller removes.
func (d *Disk) save(segment uint64, s *core.Snapshot, hold WithMachine) (err error) {
	if d.replica != nil {
		if d.dir, err = os.MkdirTemp("", "muster-replica-"); err != nil {
			return err
		}
	}
	name := filepath.Join(d.dir, temporary)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var size int64
	if err = d.write(name, segment, s, hold); err == nil {
		size, err = seal(d.options.FS, name)
	}
	if err != nil {
		_ = os.Remove(name)
		return err
	}
	d.checkpointSize = size
	if err := d.options.FS.Rename(name, CheckpointOf(d.dir)); err != nil {
		return err
	}
	if d.replica != nil {
		return d.replica.Install(CheckpointOf(d.dir), segment)
	}
	return d.options.FS.SyncDir(d.dir)
}

// write writes a checkpoint into a bbolt file. It needs memory of a few times batchBytes and
// gcBytes, or a sixteenth of the heap.
func (d *Disk) write(name string, segment uint64, s *core.Snapshot, hold WithMachine) (err error) {
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	w := &writer{db: db, gcEvery: max(gcBytes, int(liveHeap()/gcShare))}
	for more := true; more; {
		var entries []core.Entry
		if err := hold(func(*core.Machine) { entries, more = s.Next(batch, batchBytes) }); err != nil {
			return err
		}
		for len(entries) > 0 {
			n := transaction(entries)
			if err := w.entries(entries[:n]); err != nil {
				return err
			}
			clear(entries[:n]) // lets values be freed that have changed since
			entries = entries[n:]
		}
	}
	state := bufio.NewWriterSize(w, 1<<20)
	if err := errors.Join(wire.WriteMsgPack(state, s.State), state.Flush()); err != nil {
		return err
	}
	return w.meta(d.Incarnation, segment)
}

// transaction returns how many of entries go into the next transaction.
func transaction(entries []core.Entry) (n int) {
	for size := 0; n < len(entries) && size < batchBytes; n++ {
		size += len(entries[n].Key) + len(entries[n].Value)
	}
	return n
}

// writer writes the buckets of a checkpoint.
type writer struct {
	db       *bbolt.DB
	valueBuf []byte // encodes the values of a transaction: bbolt copies them at its end
	state    uint64 // number of pieces of the state written
	value    uint64 // number of pieces of values written
	sinceGC  int    // bytes written since the last collection
	gcEvery  int
}

// update puts keys and values into a bucket, in one transaction. Values must not change until it
// returns.
func (w *writer) update(bucket string, values iter.Seq2[[]byte, []byte]) error {
	return w.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		if err != nil {
			return err
		}
		b.FillPercent = 0.9 // keys come mostly in order
		for k, v := range values {
			w.sinceGC += len(k) + len(v)
			if err := b.Put(k, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// liveHeap returns the bytes that the last collection has left on the heap.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// collect runs the garbage collector when it is due.
func (w *writer) collect() {
	if w.sinceGC >= w.gcEvery {
		w.sinceGC = 0
		runtime.GC()
	}
}

func (w *writer) entries(entries []core.Entry) error {
	defer w.collect()
	size := 0
	for _, e := range entries {
		size += entryHead + min(len(e.Value), pieceBytes)
	}
	if cap(w.valueBuf) < size {
		w.valueBuf = make([]byte, 0, max(size, batchBytes+batchBytes/4))
	}
	room, number := w.valueBuf[:0], w.value
	for _, e := range entries {
		if len(e.Value) > pieceBytes {
			if err := w.pieces(valuesName, w.value, e.Value); err != nil {
				return err
			}
			w.value += piecesOfValue(e.Value)
		}
	}
	return w.update(entriesName, func(yield func(k, v []byte) bool) {
		for _, e := range entries {
			start := len(room)
			room = binary.LittleEndian.AppendUint64(room, e.Rev)
			room = binary.LittleEndian.AppendUint64(room, uint64(e.Expires))
			if n := piecesOfValue(e.Value); n > 1 {
				room = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(room, uint32(n)), number)
				number += n
			} else {
				room = append(binary.LittleEndian.AppendUint32(room, 0), e.Value...)
			}
			if !yield([]byte("k"+e.Key), room[start:]) { // bbolt has no empty keys
				return
			}
		}
	})
}

// piecesOfValue returns the number of pieces of a value.
func piecesOfValue(v []byte) uint64 { return uint64((len(v) + pieceBytes - 1) / pieceBytes) }

// entryHead is the number of bytes before the value of an entry.
const entryHead = 20

// pieces writes b in pieces, numbered from number on.
func (w *writer) pieces(bucket string, number uint64, b []byte) error {
	for len(b) > 0 {
		part := b[:min(len(b), batchBytes)]
		b = b[len(part):]
		if err := w.update(bucket, func(yield func(k, v []byte) bool) {
			for piece := range slices.Chunk(part, pieceBytes) {
				if !yield(binary.BigEndian.AppendUint64(nil, number), piece) {
					return
				}
				number++
			}
		}); err != nil {
			return err
		}
		w.collect()
	}
	return nil
}

// Write writes a part of the state, for wire.WriteMsgPack.
func (w *writer) Write(b []byte) (n int, err error) {
	first := w.state
	w.state += piecesOfValue(b)
	return len(b), w.pieces(stateName, first, b)
}

func (w *writer) meta(incarnation, segment uint64) error {
	id, from := binary.LittleEndian.AppendUint64(nil, incarnation), binary.LittleEndian.AppendUint64(nil, segment)
	return w.update(metaName, func(yield func(k, v []byte) bool) {
		_ = yield([]byte("incarnation"), id) && yield([]byte("segment"), from)
	})
}

// read reads a checkpoint file, which it does not change, into a new machine. bbolt trusts its
// pages, so the seal is verified first. If the disk returns other bytes later, a panic of bbolt or
// a fault in the mapped file becomes an error.
func (d *Disk) read(name string) (m *core.Machine, segment uint64, err error) {
	if d.checkpointSize, err = checkSeal(name); err != nil {
		return nil, 0, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, filepath.Base(name), r)
		}
	}()
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if m, segment, err = d.machine(tx); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, filepath.Base(name), err)
		}
		return nil
	})
	return m, segment, err
}

// machine builds the machine of a checkpoint.
func (d *Disk) machine(tx *bbolt.Tx) (m *core.Machine, segment uint64, err error) {
	meta, state, entries := tx.Bucket([]byte(metaName)), tx.Bucket([]byte(stateName)), tx.Bucket([]byte(entriesName))
	if meta == nil || state == nil {
		return nil, 0, errors.New("a bucket is missing")
	}
	id, from := meta.Get([]byte("incarnation")), meta.Get([]byte("segment"))
	if len(id) != 8 || len(from) != 8 {
		return nil, 0, errors.New("it has no incarnation, or no segment")
	}
	var pieces []io.Reader
	if err := state.ForEach(func(_, piece []byte) error {
		pieces = append(pieces, bytes.NewReader(piece))
		return nil
	}); err != nil {
		return nil, 0, err
	}
	var s core.State
	if err := wire.ReadMsgPack(io.MultiReader(pieces...), &s); err != nil {
		return nil, 0, err
	}
	if m, err = core.Restore(s.Limits, &s, entriesOf(entries, tx.Bucket([]byte(valuesName)))); err != nil {
		return nil, 0, err
	}
	d.Incarnation = binary.LittleEndian.Uint64(id)
	return m, binary.LittleEndian.Uint64(from), nil
}

// entriesOf yields the entries of a checkpoint, as copies.
func entriesOf(b, values *bbolt.Bucket) iter.Seq2[core.Entry, error] {
	return func(yield func(core.Entry, error) bool) {
		if b == nil {
			return
		}
		c := b.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if len(v) < entryHead || len(k) < 1 {
				yield(core.Entry{}, fmt.Errorf("entry %q has %d bytes", k, len(v)))
				return
			}
			e := core.Entry{
				Key: string(k[1:]), Rev: binary.LittleEndian.Uint64(v),
				Expires: core.Time(binary.LittleEndian.Uint64(v[8:])),
			}
			if n := binary.LittleEndian.Uint32(v[16:]); n == 0 {
				e.Value = core.CopyValue(v[entryHead:])
			} else if e.Value = largeValue(values, uint64(n), v[entryHead:]); e.Value == nil {
				yield(core.Entry{}, fmt.Errorf("entry %q has a piece missing", k))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// largeValue returns a value of n pieces, or nil if a piece is missing.
func largeValue(values *bbolt.Bucket, n uint64, first []byte) (value []byte) {
	if values == nil || len(first) != 8 {
		return nil
	}
	value = make([]byte, 0, min(n*pieceBytes, wire.MaxValue))
	for number := binary.LittleEndian.Uint64(first); n > 0; n-- {
		k := binary.BigEndian.AppendUint64(nil, number)
		v := values.Get(k)
		if v == nil {
			return nil
		}
		value = append(value, v...)
		number++
	}
	return value
}
