package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// A checkpoint is a bbolt file of two buckets.
//
//	meta     "format": u32 · "incarnation": u64 · "segment": u64 · "state": core.State, as msgpack · "sum": tally; written last
//	entries  key → revision u64 | when it goes i64 | reads u32 | value
const (
	format      = 1
	metaName    = "meta"
	entriesName = "entries"
	// batch is how many entries are read at once while nobody else has the machine: well below a millisecond.
	batch = 1000
)

// tally is what must be the same when a checkpoint is read: how many entries there are, and the sum of their checksums.
type tally struct{ count, sum uint64 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (t *tally) add(k, v []byte) {
	t.count++
	t.sum += uint64(crc32.Update(crc32.Checksum(k, castagnoli), castagnoli, v))
}

func (t *tally) bytes() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, t.count), t.sum)
}

// pieces gives the entries of a checkpoint, piece by piece.
type pieces func() (entries []core.Entry, more bool, err error)

// piecesOf are those of a snapshot of a machine that nobody else has.
func piecesOf(s *core.Snapshot) pieces {
	return func() ([]core.Entry, bool, error) {
		entries, more := s.Next(batch)
		return entries, more, nil
	}
}

// save writes a checkpoint, and puts it in the place of the one before.
func (d *Disk) save(segment uint64, s *core.State, next pieces) error {
	name := filepath.Join(d.dir, temporary)
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.write(name, segment, s, next); err != nil {
		_ = os.Remove(name)
		return err
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	d.size = info.Size()
	if err := os.Rename(name, filepath.Join(d.dir, checkpointName)); err != nil {
		return err
	}
	return syncDir(d.dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *Disk) write(name string, segment uint64, s *core.State, next pieces) (err error) {
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var all tally
	for more := true; more; {
		var entries []core.Entry
		if entries, more, err = next(); err != nil {
			return err
		}
		if err := db.Update(func(tx *bbolt.Tx) error { return putEntries(tx, entries, &all) }); err != nil {
			return err
		}
	}
	state, err := wire.MsgPack.Append(nil, s)
	if err != nil {
		return err
	}
	all.add(nil, state)
	if err := db.Update(func(tx *bbolt.Tx) error { return d.putMeta(tx, segment, state, &all) }); err != nil {
		return err
	}
	return db.Sync()
}

func putEntries(tx *bbolt.Tx, entries []core.Entry, all *tally) error {
	b, err := tx.CreateBucketIfNotExists([]byte(entriesName))
	if err != nil {
		return err
	}
	b.FillPercent = 0.9 // they come in order, mostly
	for _, e := range entries {
		v := make([]byte, 0, 20+len(e.Value))
		v = binary.LittleEndian.AppendUint64(v, e.Rev)
		v = binary.LittleEndian.AppendUint64(v, uint64(e.At))
		v = binary.LittleEndian.AppendUint32(v, e.Reads)
		k, v := []byte("k"+e.Key), append(v, e.Value...) // bbolt has no empty keys
		if err := b.Put(k, v); err != nil {
			return err
		}
		all.add(k, v)
	}
	return nil
}

func (d *Disk) putMeta(tx *bbolt.Tx, segment uint64, state []byte, all *tally) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaName))
	if err != nil {
		return err
	}
	return errors.Join(
		b.Put([]byte("format"), binary.LittleEndian.AppendUint32(nil, format)),
		b.Put([]byte("incarnation"), binary.LittleEndian.AppendUint64(nil, d.Incarnation)),
		b.Put([]byte("segment"), binary.LittleEndian.AppendUint64(nil, segment)),
		b.Put([]byte("state"), state),
		b.Put([]byte("sum"), all.bytes()),
	)
}

// load reads the checkpoint of the directory.
func (d *Disk) load() (m *core.Machine, segment uint64, err error) {
	return d.read(filepath.Join(d.dir, checkpointName))
}

// read makes a machine of a checkpoint, which it does not change.
func (d *Disk) read(name string) (m *core.Machine, segment uint64, err error) {
	defer func() { // bbolt panics over some files that are not its own
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDamaged, filepath.Base(name), r)
		}
	}()
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	d.size = info.Size()
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %s is no checkpoint: %w", ErrForeign, filepath.Base(name), err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() { // what is not there must not be looked at: the file is mapped
			return fmt.Errorf("%w: %s has been cut short", ErrDamaged, filepath.Base(name))
		}
		var s core.State
		if segment, err = d.meta(tx, &s); err != nil {
			return err
		}
		if err := sound(tx); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, filepath.Base(name), err)
		}
		m, err = core.Restore(s.Limits, &s, entriesOf(tx))
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, filepath.Base(name), err)
		}
		return nil
	})
	return m, segment, err
}

func (d *Disk) meta(tx *bbolt.Tx, s *core.State) (segment uint64, err error) {
	b := tx.Bucket([]byte(metaName))
	if b == nil {
		return 0, fmt.Errorf("%w: a bbolt file of somebody else", ErrForeign)
	}
	version, id, from := b.Get([]byte("format")), b.Get([]byte("incarnation")), b.Get([]byte("segment"))
	switch {
	case len(version) != 4 || len(id) != 8 || len(from) != 8:
		return 0, fmt.Errorf("%w: a bbolt file of somebody else", ErrForeign)
	case binary.LittleEndian.Uint32(version) > format:
		return 0, fmt.Errorf("%w: format %d, this is %d", ErrNewer, binary.LittleEndian.Uint32(version), format)
	}
	d.Incarnation = binary.LittleEndian.Uint64(id)
	if err := wire.MsgPack.Parse(bytes.Clone(b.Get([]byte("state"))), s); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return binary.LittleEndian.Uint64(from), nil
}

// sound compares a checkpoint with its tally.
func sound(tx *bbolt.Tx) error {
	meta, b := tx.Bucket([]byte(metaName)), tx.Bucket([]byte(entriesName))
	if b == nil {
		return errors.New("it has no entries")
	}
	var all tally
	all.add(nil, meta.Get([]byte("state")))
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		all.add(k, v)
	}
	if !bytes.Equal(all.bytes(), meta.Get([]byte("sum"))) {
		return errors.New("its checksum is wrong")
	}
	return nil
}

// entriesOf gives the entries of a checkpoint, in memory of their own.
func entriesOf(tx *bbolt.Tx) iter.Seq2[core.Entry, error] {
	return func(yield func(core.Entry, error) bool) {
		c := tx.Bucket([]byte(entriesName)).Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			if len(v) < 20 || len(k) < 1 {
				yield(core.Entry{}, fmt.Errorf("entry %q has %d bytes", k, len(v)))
				return
			}
			e := core.Entry{
				Key: string(k[1:]), Value: append([]byte{}, v[20:]...), Rev: binary.LittleEndian.Uint64(v),
				At: core.Time(binary.LittleEndian.Uint64(v[8:])), Reads: binary.LittleEndian.Uint32(v[16:]),
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}
