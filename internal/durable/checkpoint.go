package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
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
//	meta     "format": u32 · "incarnation": u64 · "segment": u64 · "state": core.State, as msgpack; written last
//	entries  key → revision u64 | when it goes i64 | reads u32 | value
const (
	format      = 1
	metaName    = "meta"
	entriesName = "entries"
	// batch is how many entries are read at once while nobody else has the machine: well below a millisecond.
	batch = 1000
)

// save writes a checkpoint, and puts it in the place of the one before.
func (d *Disk) save(segment uint64, s *core.State, next func() ([]core.Entry, bool)) error {
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

func (d *Disk) write(name string, segment uint64, s *core.State, next func() ([]core.Entry, bool)) (err error) {
	db, err := bbolt.Open(name, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for more := true; more; {
		var entries []core.Entry
		entries, more = next()
		if err := db.Update(func(tx *bbolt.Tx) error { return putEntries(tx, entries) }); err != nil {
			return err
		}
	}
	state, err := wire.MsgPack.Append(nil, s)
	if err != nil {
		return err
	}
	if err := db.Update(func(tx *bbolt.Tx) error { return d.putMeta(tx, segment, state) }); err != nil {
		return err
	}
	return db.Sync()
}

func putEntries(tx *bbolt.Tx, entries []core.Entry) error {
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
		// bbolt has no empty keys.
		if err := b.Put([]byte("k"+e.Key), append(v, e.Value...)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) putMeta(tx *bbolt.Tx, segment uint64, state []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaName))
	if err != nil {
		return err
	}
	return errors.Join(
		b.Put([]byte("format"), binary.LittleEndian.AppendUint32(nil, format)),
		b.Put([]byte("incarnation"), binary.LittleEndian.AppendUint64(nil, d.Incarnation)),
		b.Put([]byte("segment"), binary.LittleEndian.AppendUint64(nil, segment)),
		b.Put([]byte("state"), state),
	)
}

// load reads the checkpoint of the directory.
func (d *Disk) load(limits core.Limits) (m *core.Machine, segment uint64, err error) {
	return d.read(filepath.Join(d.dir, checkpointName), limits)
}

// read makes a machine of a checkpoint, which it does not change.
func (d *Disk) read(name string, limits core.Limits) (m *core.Machine, segment uint64, err error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, 0, err
	}
	d.size = info.Size()
	db, err := openCheckpoint(name)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %s is no checkpoint: %w", ErrForeign, filepath.Base(name), err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		var s core.State
		if segment, err = d.meta(tx, &s); err != nil {
			return err
		}
		m, err = core.Restore(limits, &s, entriesOf(tx))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
	return m, segment, err
}

// openCheckpoint opens a file that is there. bbolt panics over some that are not its own.
func openCheckpoint(name string) (db *bbolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return bbolt.Open(name, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
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

// entriesOf gives the entries of a checkpoint, in memory of their own.
func entriesOf(tx *bbolt.Tx) iter.Seq2[core.Entry, error] {
	return func(yield func(core.Entry, error) bool) {
		b := tx.Bucket([]byte(entriesName))
		if b == nil {
			yield(core.Entry{}, errors.New("no entries"))
			return
		}
		c := b.Cursor()
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
