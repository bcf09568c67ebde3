// Package durable keeps a core.Machine in a directory: a log of the machine's events, and a
// checkpoint that replaces the log from time to time.
//
//	DIR/lock            locked by the process that uses the directory
//	DIR/checkpoint.db   a state (bbolt), the log segment that follows it, and a seal with a checksum
//	DIR/log-…           the segments of the log since then (package journal)
//
// A checkpoint is written to a temporary file, made durable, and renamed over the old one, so that
// a complete one always exists. The segment that it names is durable before the rename; a directory
// without that segment has therefore lost it.
//
// A start verifies the checksum of all that it depends on before it uses it: the seal covers the
// whole checkpoint. A start returns all that was acknowledged, or an error; in case of an error it
// has changed nothing but the lock file.
package durable

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/wire"
)

// The errors of a directory that cannot be used, besides those of the operating system.
var (
	ErrInUse   = errors.New("in use by another process")
	ErrForeign = errors.New("directory has files that are not a store's")
	ErrNewer   = errors.New("written by a newer version")
	ErrOlder   = errors.New("written by an older version, whose format this one does not read")
	ErrDamaged = errors.New("damaged")
)

// FS is the file system that a directory is on.
type FS = journal.FS

// Options configures a Disk. The zero value is valid.
type Options struct {
	// ReconnectTimeout is how long sessions get to reconnect after a restart; default 10 s.
	ReconnectTimeout time.Duration
	// CheckpointBytes is the size of the log, in bytes, that starts a checkpoint; default 64 MiB.
	CheckpointBytes int64
	// Logger receives log records; nil discards them.
	Logger *slog.Logger
	// FS is the file system of the log, and of the sync and rename of a checkpoint; default: the
	// operating system's.
	FS FS
	// OnWrite is the option of that name of journal.Options.
	OnWrite func(took time.Duration)
}

func (o *Options) withDefaults() *Options {
	own := Options{}
	if o != nil {
		own = *o
	}
	own.ReconnectTimeout = cmp.Or(own.ReconnectTimeout, 10*time.Second)
	own.CheckpointBytes = cmp.Or(own.CheckpointBytes, 64<<20)
	own.FS = cmp.Or(own.FS, journal.OS)
	own.Logger = cmp.Or(own.Logger, slog.New(slog.DiscardHandler))
	return &own
}

// Log is an ordered sequence of entries, in segments. A *journal.Journal keeps it in a directory,
// package etcdlog in an etcd. The methods are documented there; they may be called by several
// goroutines at once.
type Log interface {
	Append(f func(b []byte) []byte) (pos uint64)
	// Sync makes the entries up to pos durable. For a log that another process may take over, it
	// makes all entries durable that were appended before the call, and proves that this process
	// still leads: a response may be sent after a Sync that began when its request had arrived.
	Sync(pos uint64) error
	Durable() uint64
	Unsynced() int64
	Writing() time.Duration
	Size() int64
	Rotate() (segment uint64)
	Begin(segment uint64) error
	Remove(before uint64) error
	Fail(err error)
	Close() error
}

// Disk is the durable log of a machine, in a directory or a Replica. The caller appends the
// machine's events in the order in which it applied them, and sends no response before Sync has
// returned for the state that the response shows.
//
// Disk owns the goroutines of MakeCheckpoints and Watch; Close ends them.
type Disk struct {
	Incarnation uint64 // identifies the state, across restarts; a restored backup gets another one

	dir      string // of a Replica: guarded by checkpointing, and there only meanwhile
	options  *Options
	dirFile  *os.File // the open directory, locked
	lockFile *os.File // the lock file, also locked: a directory on NFS cannot be
	log      Log
	journal  *journal.Journal // log, if it is in a directory, else nil
	replica  *Replica         // the replica that log is of, or nil

	checkpointing  sync.Mutex // held while a checkpoint is made
	checkpointSize int64      // guarded by checkpointing: size of the last checkpoint in bytes
	closed         bool       // guarded by checkpointing: another process may have the directory
	stop           chan struct{}
	wg             sync.WaitGroup
}

const (
	lockName       = "lock"
	checkpointName = "checkpoint.db"
	temporary      = "checkpoint.tmp"
	logPrefix      = "log-"
)

// A new store starts its log with segment 1: if the directory has that segment without entries, and
// no checkpoint, nothing is lost. A restored store starts with another number, because its log is
// worthless without the checkpoint.
const (
	firstSegment    = 1
	restoredSegment = 2
)

// Open opens dir, which it creates if it does not exist, and returns the machine as of the last
// acknowledged event. Sessions get Options.ReconnectTimeout to reconnect.
func Open(dir string, limits core.Limits, o *Options) (*Disk, *core.Machine, error) {
	d := &Disk{dir: dir, options: o.withDefaults(), stop: make(chan struct{})}
	m, err := d.open(limits)
	if err != nil {
		if d.log != nil {
			_ = d.log.Close()
		}
		_ = d.release()
		if !strings.Contains(err.Error(), dir) { // it names no file there
			err = fmt.Errorf("%s: %w", dir, err)
		}
		return nil, nil, fmt.Errorf("durable: %w", err)
	}
	return d, m, nil
}

func (d *Disk) open(limits core.Limits) (*core.Machine, error) {
	is, err := d.acquire()
	if err != nil {
		return nil, err
	}
	if !is {
		if err := d.create(firstSegment, core.New(limits)); err != nil {
			return nil, err
		}
	}
	m, segment, err := d.read(CheckpointOf(d.dir))
	if err != nil {
		return nil, addAdvice(err)
	}
	d.journal, err = journal.Open(d.dir, d.Incarnation, segment, m.Replay, d.logOptions())
	if err != nil {
		return nil, addAdvice(err)
	}
	d.log = d.journal
	return m, d.resume(m, limits, is)
}

// resume appends what follows the replay: the limits, and the restart if the store is not new.
func (d *Disk) resume(m *core.Machine, limits core.Limits, restart bool) error {
	// Limits apply from here on: the replayed events were decided under earlier ones.
	m.SetLimits(limits)
	now := m.Now()
	pos := d.log.Append(func(b []byte) []byte { return core.AppendLimits(b, now, limits) })
	if restart {
		m.Restart(now, d.options.ReconnectTimeout)
		m.Effects()
		pos = d.log.Append(func(b []byte) []byte { return core.AppendRestart(b, now, d.options.ReconnectTimeout) })
	}
	return d.log.Sync(pos)
}

// addAdvice adds to an error about a damaged directory what to do. A journal.DamageError has that
// already.
func addAdvice(err error) error {
	if errors.Is(err, ErrDamaged) || errors.Is(err, journal.ErrForeign) || errors.Is(err, journal.ErrOtherStore) {
		return fmt.Errorf("%w; nothing was changed: keep a copy of the directory, check the disk, and restore the directory from a backup", err)
	}
	return err
}

func (d *Disk) logOptions() *journal.Options {
	return &journal.Options{Logger: d.options.Logger, FS: d.options.FS, OnWrite: d.options.OnWrite}
}

// create makes a store of a new incarnation, after hasStore has found none: the segment first, then
// the checkpoint that names it. A process that is killed in between leaves a segment without
// entries.
func (d *Disk) create(segment uint64, m *core.Machine) error {
	d.Incarnation = rand.Uint64() | 1
	err := journal.Create(d.dir, d.Incarnation, segment, d.logOptions())
	if errors.Is(err, journal.ErrExists) {
		err = fmt.Errorf("%w: there is a log, and no %s; restore a backup into another directory", ErrDamaged, checkpointName)
	}
	if err != nil {
		return err
	}
	return d.save(segment, m.Snapshot(), func(f func(*core.Machine)) error { f(m); return nil })
}

// hasStore reports whether the directory has a store. Files of other programs are an error, and are
// not touched.
func (d *Disk) hasStore() (is bool, err error) {
	files, err := d.options.FS.ReadDir(d.dir)
	if err != nil {
		return false, err
	}
	others := []string{}
	for _, name := range files {
		switch {
		case name == checkpointName:
			return true, nil
		case !strings.HasPrefix(name, logPrefix) && name != lockName && name != temporary && name != "lost+found":
			others = append(others, name)
		}
	}
	if len(others) > 0 {
		return false, fmt.Errorf("%w: %s; name an empty directory", ErrForeign, strings.Join(others[:min(len(others), 3)], ", "))
	}
	return false, nil
}

// Apply appends the event of machine.Apply. Like Tick and Advance it does no I/O.
func (d *Disk) Apply(now core.Time, session uint64, req *wire.Request) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendApply(b, now, session, req) })
}

// Tick appends the event of a machine.Tick that changed the state.
func (d *Disk) Tick(now core.Time) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendTick(b, now) })
}

// Advance appends the event of a machine.Advance that changed the state.
func (d *Disk) Advance(now core.Time) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendAdvance(b, now) })
}

// Sync returns when all events up to pos are durable. An error is permanent: acknowledged events
// may be lost.
func (d *Disk) Sync(pos uint64) error { return d.log.Sync(pos) }

// Durable returns the position up to which all events are durable.
func (d *Disk) Durable() uint64 { return d.log.Durable() }

// Shared reports whether another process may take the log over. Then each response needs a Sync,
// also one to a read.
func (d *Disk) Shared() bool { return d.replica != nil }

// Unsynced returns the number of bytes of events that are not durable yet.
func (d *Disk) Unsynced() int64 { return d.log.Unsynced() }

// Writing returns for how long the current write of the log has taken; 0 if there is none.
func (d *Disk) Writing() time.Duration { return d.log.Writing() }

// LogSize returns the number of bytes of log since the last checkpoint.
func (d *Disk) LogSize() int64 { return d.log.Size() }

// WithMachine calls a function with the machine while no other goroutine uses it, and while all of
// its events are in the log.
type WithMachine func(func(*core.Machine)) error

// MakeCheckpoints makes a checkpoint whenever the log is larger than Options.CheckpointBytes and
// than the last checkpoint, until Close. A checkpoint that fails may have filled the disk that the
// log needs: the next attempt follows after twice the time, at most a minute.
func (d *Disk) MakeCheckpoints(hold WithMachine) {
	d.wg.Go(func() {
		for pause := time.Second; ; {
			select {
			case <-time.After(pause):
			case <-d.stop:
				return
			}
			if d.log.Size() < max(d.options.CheckpointBytes, d.lastCheckpointSize()) {
				continue
			}
			err := d.Checkpoint(hold)
			if err == nil {
				pause = time.Second
				continue
			}
			pause = min(2*pause, time.Minute)
			// Nothing is lost: the log has all events.
			d.options.Logger.Error("checkpoint", "dir", d.dir, "err", err, "again", pause)
		}
	})
}

func (d *Disk) lastCheckpointSize() int64 {
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	return d.checkpointSize
}

// Checkpoint writes the state to a new checkpoint, and removes the segments of the log before it.
//
// The machine is only locked to begin a snapshot and to copy batches of entries: requests go on in
// between, and their events go to the next segment. The snapshot keeps the old values of entries
// that change meanwhile. The segment is durable before the checkpoint names it, and older segments
// are removed after the checkpoint is durable, so that a crash at any point leaves a state and all
// events since.
func (d *Disk) Checkpoint(hold WithMachine) error {
	f, err := d.Backup(hold)
	if err != nil {
		return err
	}
	return f.Close()
}

// Backup makes a checkpoint and opens its file: a consistent copy of the store. The caller closes
// the file.
func (d *Disk) Backup(hold WithMachine) (*os.File, error) {
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	if d.closed {
		return nil, os.ErrClosed
	}
	if d.replica != nil {
		defer func() {
			_ = os.RemoveAll(d.dir)
			d.dir = ""
		}()
	}
	if err := d.checkpoint(hold); err != nil {
		return nil, err
	}
	return os.Open(CheckpointOf(d.dir))
}

// checkpoint is Checkpoint. The caller holds checkpointing.
func (d *Disk) checkpoint(hold WithMachine) error {
	var s *core.Snapshot
	var segment uint64
	began := time.Now()
	if err := hold(func(m *core.Machine) {
		// Reads move the machine's clock, and are not logged. A process that only follows the log must not
		// lead on with a clock behind that of the checkpoint: who loads it would replay other deadlines.
		d.Advance(m.Now())
		segment = d.log.Rotate()
		s = m.Snapshot()
	}); err != nil {
		return err
	}
	held := time.Since(began)
	err := d.log.Begin(segment)
	if err == nil {
		err = d.save(segment, s, hold)
	}
	if err != nil {
		_ = hold(func(*core.Machine) { s.Stop() })
		return err
	}
	d.options.Logger.Debug("checkpoint", "dir", d.dir, "took", time.Since(began), "held", held)
	return d.log.Remove(segment)
}

// Close makes all appended events durable, and releases the directory.
func (d *Disk) Close() error {
	close(d.stop)
	d.wg.Wait()
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	d.closed = true
	return errors.Join(d.log.Close(), d.release())
}

// acquire makes the directory if it does not exist, locks it, and reports whether it has a store.
func (d *Disk) acquire() (hasStore bool, err error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return false, err
	}
	if err := d.options.FS.SyncDir(filepath.Dir(filepath.Clean(d.dir))); err != nil {
		return false, err
	}
	if err := d.lock(); err != nil {
		return false, err
	}
	return d.hasStore()
}

// lock locks the lock file, and also the directory: after the lock file was removed, a second
// process must not be able to open the directory.
func (d *Disk) lock() (err error) {
	if d.dirFile, err = os.Open(d.dir); err != nil {
		return err
	}
	if err := lockDir(d.dirFile); err != nil {
		return fmt.Errorf("%w (%w)", ErrInUse, err)
	}
	f, err := os.OpenFile(filepath.Join(d.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	d.lockFile = f
	if err := flock(f); err != nil {
		return fmt.Errorf("%w (%w)", ErrInUse, err)
	}
	return nil
}

func (d *Disk) release() error {
	var errs []error
	for _, f := range []*os.File{d.lockFile, d.dirFile} {
		if f != nil {
			unlock(f)
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Restore puts a backup into dir, which does not exist or is empty. The store gets a new
// incarnation without sessions: those of the original store may have gone on after the backup.
func Restore(backup, dir string) error {
	d := &Disk{dir: dir, options: new(Options).withDefaults(), stop: make(chan struct{})}
	err := d.restore(backup)
	if err = errors.Join(err, d.release()); err != nil {
		return fmt.Errorf("durable: restore %s into %s: %w", backup, dir, err)
	}
	return nil
}

func (d *Disk) restore(backup string) error {
	if _, err := os.Stat(backup); err != nil {
		return err
	}
	if is, err := d.acquire(); err != nil || is {
		return cmp.Or(err, fs.ErrExist)
	}
	m, _, err := d.read(backup)
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%w: use another backup", err)
	}
	if err != nil {
		return err
	}
	m.Restart(m.Now(), 0)
	for _, session := range m.Sessions() {
		m.Apply(m.Now(), session, &wire.Request{Op: wire.OpLost}, new(wire.Reply))
	}
	return d.create(restoredSegment, m)
}
