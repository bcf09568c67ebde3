// Package durable keeps a core.Machine in a directory: a log of its events, which is folded into a checkpoint from time to time.
//
//	DIR/lock            held by the process that has the directory
//	DIR/checkpoint.db   the state of a moment (bbolt), the segment of the log from which on to replay, and a seal
//	DIR/log-…           segments of the log, since then (package journal)
//
// A checkpoint is written beside the old one, made durable, and renamed over it: there is always one that is whole. The
// segment that it names is durable before that, so that a directory without it has lost it.
//
// All that a start depends on is under a checksum, and looked at before it is used: the seal is of the whole checkpoint. A start
// returns what was acknowledged, or an error, and then it has changed nothing but the lock.
package durable

import (
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

// What can be wrong with a directory, besides what the system says.
var (
	ErrInUse   = errors.New("another process has it")
	ErrForeign = errors.New("it has files that are not a store's")
	ErrNewer   = errors.New("it was written by a newer version")
	ErrDamaged = errors.New("it is damaged")
)

// FS is the file system that a directory is on.
type FS = journal.FS

// Options has defaults for its zero value.
type Options struct {
	Grace  time.Duration            // what sessions get after a restart to come back; default 10 s
	Fold   int64                    // bytes of log that make a checkpoint worth while; default 64 MiB
	Logger *slog.Logger             // nil is silent
	FS     FS                       // of the log, and of what makes a checkpoint durable; nil is the system's
	Wrote  func(took time.Duration) // if not nil, see journal.Options
}

func (o *Options) withDefaults() *Options {
	own := Options{}
	if o != nil {
		own = *o
	}
	if own.Grace == 0 {
		own.Grace = 10 * time.Second
	}
	if own.Fold == 0 {
		own.Fold = 64 << 20
	}
	if own.FS == nil {
		own.FS = journal.OS
	}
	if own.Logger == nil {
		own.Logger = slog.New(slog.DiscardHandler)
	}
	return &own
}

// Records is an ordered log of records, in segments. A *journal.Journal keeps it in a directory, package etcdlog in an etcd.
// The methods are documented there; all of them may be called by several goroutines.
type Records interface {
	Append(f func(b []byte) []byte) (pos uint64)
	// Sync makes the records up to pos durable. Of a log that another process may take over, it makes all durable that was appended
	// before it, and shows that this process still leads: an answer may leave after a Sync that began when its request was there.
	Sync(pos uint64) error
	Durable() uint64
	Progress() uint64 // another value whenever a Sync could return
	Unsynced() int64
	Writing() time.Duration
	Size() int64
	Rotate() (segment uint64)
	Begin(segment uint64) error
	Remove(before uint64) error
	Fail(err error)
	Close() error
}

// Disk is a machine's directory. Whoever drives the machine appends its events in their order, and lets no answer out before Sync has
// returned for what the answer saw. Disk owns one goroutine, from Fold on, which makes checkpoints; Close ends it.
type Disk struct {
	Incarnation uint64 // of the state, for ever

	dir     string
	options *Options
	held    *os.File // the directory, locked
	lock    *os.File // the file in it, locked too: a directory on NFS cannot be
	log     Records
	journal *journal.Journal // that log is; nil if it is elsewhere
	replica *Replica         // where log is then

	folding sync.Mutex // held while a checkpoint is made
	size    int64      // of the last one; with folding
	closed  bool       // with folding: the directory may be somebody else's
	stop    chan struct{}
	running sync.WaitGroup
}

const (
	lockName       = "lock"
	checkpointName = "checkpoint.db"
	temporary      = "checkpoint.tmp"
	logPrefix      = "log-"
)

// A store that is new begins its log with the segment 1: nothing is lost if that has no records, and there is no checkpoint. One
// that is restored begins it with another, and needs its checkpoint.
const (
	created  = 1
	restored = 2
)

// Open opens dir, which is made if it is not there, and brings its machine back as it was when the last answer left.
func Open(dir string, limits core.Limits, o *Options) (*Disk, *core.Machine, error) {
	d := &Disk{dir: dir, options: o.withDefaults(), stop: make(chan struct{})}
	m, err := d.open(limits)
	if err != nil {
		if d.log != nil {
			_ = d.log.Close()
		}
		_ = d.release()
		return nil, nil, fmt.Errorf("durable: %s: %w", dir, err)
	}
	return d, m, nil
}

func (d *Disk) open(limits core.Limits) (*core.Machine, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return nil, err
	}
	if err := d.options.FS.SyncDir(filepath.Dir(filepath.Clean(d.dir))); err != nil {
		return nil, err
	}
	if err := d.acquire(); err != nil {
		return nil, err
	}
	is, err := d.look()
	if err != nil {
		return nil, err
	}
	if !is {
		if err := d.create(created, core.New(limits), nil); err != nil {
			return nil, err
		}
	}
	m, segment, err := d.load()
	if err != nil {
		return nil, advise(err)
	}
	d.journal, err = journal.Open(d.dir, d.Incarnation, segment, m.Replay, d.logOptions())
	if err != nil {
		return nil, advise(err)
	}
	d.log = d.journal
	return m, d.goOn(m, limits, is)
}

// goOn begins to log what m does from now on: the limits, and, of one that was there before, the restart.
func (d *Disk) goOn(m *core.Machine, limits core.Limits, restart bool) error {
	// What was refused under other limits stays refused: what is replayed is replayed under those that it had.
	m.SetLimits(limits)
	now := m.Now()
	pos := d.log.Append(func(b []byte) []byte { return core.AppendLimits(b, now, limits) })
	if restart {
		m.Restart(now, d.options.Grace)
		m.Effects()
		pos = d.log.Append(func(b []byte) []byte { return core.AppendRestart(b, now, d.options.Grace) })
	}
	return d.log.Sync(pos)
}

// advise adds to an error about a damaged directory what to do. A journal.DamageError says it itself.
func advise(err error) error {
	if errors.Is(err, ErrDamaged) || errors.Is(err, journal.ErrForeign) || errors.Is(err, journal.ErrOtherStore) {
		return fmt.Errorf("%w; nothing was changed: keep a copy of the directory, check the disk, and restore the directory from a backup", err)
	}
	return err
}

func (d *Disk) logOptions() *journal.Options {
	return &journal.Options{Logger: d.options.Logger, FS: d.options.FS, Wrote: d.options.Wrote}
}

// create makes a store of a new incarnation in a directory that look has found to have none: the segment first, then the
// checkpoint that names it. A process that is killed in between has left a segment without records.
func (d *Disk) create(segment uint64, m *core.Machine, progress func(done, total int)) error {
	d.Incarnation = rand.Uint64() | 1
	err := journal.Create(d.dir, d.Incarnation, segment, d.logOptions())
	if errors.Is(err, journal.ErrExists) {
		err = fmt.Errorf("%w: there is a log, and no %s; restore a backup into another directory", ErrDamaged, checkpointName)
	}
	if err != nil {
		return err
	}
	s := m.Snapshot()
	return d.save(segment, s.State, told(piecesOf(s), m.Keys(), progress))
}

// look reports whether there is a store in the directory. Anything else that is there is left alone.
func (d *Disk) look() (is bool, err error) {
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

// Apply appends the event of an Apply. Like Tick and Advance it does no I/O.
func (d *Disk) Apply(now core.Time, session uint64, req *wire.Request) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendApply(b, now, session, req) })
}

// Tick appends the event of a Tick that had something to do.
func (d *Disk) Tick(now core.Time) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendTick(b, now) })
}

// Advance appends the event of an Advance that had something to do.
func (d *Disk) Advance(now core.Time) (pos uint64) {
	return d.log.Append(func(b []byte) []byte { return core.AppendAdvance(b, now) })
}

// Sync returns when everything up to pos is on the disk. An error is for ever: what was acknowledged may not be there.
func (d *Disk) Sync(pos uint64) error { return d.log.Sync(pos) }

// Durable is up to where everything is on the disk.
func (d *Disk) Durable() uint64 { return d.log.Durable() }

// Progress is another value whenever a Sync could return.
func (d *Disk) Progress() uint64 { return d.log.Progress() }

// Shared reports whether another process may take the log over: then no answer leaves without a Sync.
func (d *Disk) Shared() bool { return d.replica != nil }

// Unsynced is how many bytes of events are not on the disk yet.
func (d *Disk) Unsynced() int64 { return d.log.Unsynced() }

// Writing is how long the write of the log that is under way has taken; 0 if there is none.
func (d *Disk) Writing() time.Duration { return d.log.Writing() }

// LogSize is how many bytes of log there are since the last checkpoint.
func (d *Disk) LogSize() int64 { return d.log.Size() }

// Hold calls a function with the machine while nobody else has it, and no event of it is missing in the log.
type Hold func(func(*core.Machine)) error

// FoldBy makes checkpoints whenever the log has grown, until Close. One that fails may have filled the disk that the log needs: it is
// tried again after twice the time, a minute at most.
func (d *Disk) FoldBy(hold Hold) {
	d.running.Go(func() {
		for pause := time.Second; ; {
			select {
			case <-time.After(pause):
			case <-d.stop:
				return
			}
			if d.log.Size() < max(d.options.Fold, d.lastSize()) {
				continue
			}
			err := d.Checkpoint(hold)
			if err == nil {
				pause = time.Second
				continue
			}
			pause = min(2*pause, time.Minute)
			d.options.Logger.Error("checkpoint", "dir", d.dir, "err", err, "again", pause) // the log has it all
		}
	})
}

func (d *Disk) lastSize() int64 {
	d.folding.Lock()
	defer d.folding.Unlock()
	return d.size
}

// Checkpoint folds the log into a new checkpoint.
func (d *Disk) Checkpoint(hold Hold) error {
	d.folding.Lock()
	defer d.folding.Unlock()
	if d.closed {
		return os.ErrClosed
	}
	var s *core.Snapshot
	var segment uint64
	began := time.Now()
	if err := hold(func(m *core.Machine) {
		segment = d.log.Rotate()
		s = m.Snapshot()
	}); err != nil {
		return err
	}
	held := time.Since(began)
	err := d.log.Begin(segment)
	if err != nil {
		_ = hold(func(*core.Machine) { s.Stop() })
		return err
	}
	err = d.save(segment, s.State, func() (entries []core.Entry, more bool, err error) {
		err = hold(func(*core.Machine) { entries, more = s.Next(batch, batchBytes) })
		return entries, more, err
	})
	if err != nil {
		_ = hold(func(*core.Machine) { s.Stop() })
		return err
	}
	d.options.Logger.Debug("checkpoint", "dir", d.dir, "took", time.Since(began), "held", held)
	return d.log.Remove(segment)
}

// Backup makes a checkpoint and opens it: a consistent copy of the store, which stays as it is.
func (d *Disk) Backup(hold Hold) (*os.File, error) {
	if err := d.Checkpoint(hold); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(d.dir, checkpointName))
}

// Close makes what was appended durable, and leaves the directory to others.
func (d *Disk) Close() error {
	close(d.stop)
	d.running.Wait()
	d.folding.Lock()
	defer d.folding.Unlock()
	d.closed = true
	return errors.Join(d.log.Close(), d.release())
}

// acquire locks the directory, so that who removes the lock file does not let a second server in, and the lock file.
func (d *Disk) acquire() (err error) {
	if d.held, err = os.Open(d.dir); err != nil {
		return err
	}
	if err := lockDir(d.held); err != nil {
		return fmt.Errorf("%w (%w)", ErrInUse, err)
	}
	f, err := os.OpenFile(filepath.Join(d.dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	d.lock = f
	if err := lockFile(f); err != nil {
		return fmt.Errorf("%w (%w)", ErrInUse, err)
	}
	return nil
}

func (d *Disk) release() error {
	var errs []error
	for _, f := range []*os.File{d.lock, d.held} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Restore puts a backup into dir, which is made, or is empty. What comes back is another incarnation: it knows no session of the first one,
// since those may have gone on after the backup. Unless progress is nil, it is told how many of the entries are written.
func Restore(backup, dir string, progress func(done, total int)) error {
	d := &Disk{dir: dir, options: new(Options).withDefaults(), stop: make(chan struct{})}
	err := d.restore(backup, progress)
	if err = errors.Join(err, d.release()); err != nil {
		return fmt.Errorf("durable: restore %s into %s: %w", backup, dir, err)
	}
	return nil
}

func (d *Disk) restore(backup string, progress func(done, total int)) error {
	if _, err := os.Stat(backup); err != nil {
		return err
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	if err := d.acquire(); err != nil {
		return err
	}
	if is, err := d.look(); err != nil || is {
		return errors.Join(err, fs.ErrExist)
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
	return d.create(restored, m, progress)
}

// told tells of each piece that is taken.
func told(next pieces, total int, progress func(done, total int)) pieces {
	done := 0
	return func() ([]core.Entry, bool, error) {
		if progress != nil && done > 0 {
			progress(done, total)
		}
		entries, more, err := next()
		done += len(entries)
		return entries, more, err
	}
}
