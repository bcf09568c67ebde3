package store

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// Replica opens a log that this process leads, and the machine that has replayed it.
type Replica interface {
	Open(limits Limits, o *durable.Options) (*durable.Disk, *core.Machine, error)
	// Status returns what is known of the processes that keep the store, without waiting for anything.
	Status() *ReplicationStatus
}

// A durable Memory writes down what its machine does, before anybody hears of it.

// openDisk brings the machine back from Dir. Called with mu.
func (m *Memory) openDisk() error {
	o := &durable.Options{ReconnectTimeout: m.ReconnectTimeout, Logger: m.Logger, OnWrite: m.meter.wrote, FS: m.fs}
	var disk *durable.Disk
	var machine *core.Machine
	var err error
	if m.Replica != nil {
		disk, machine, err = m.Replica.Open(m.Limits, o)
	} else {
		disk, machine, err = durable.Open(m.Dir, m.Limits, o)
	}
	if err != nil {
		return &Error{Op: "open", Key: m.Dir, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	m.disk, m.machine, m.incarnation, m.logged = disk, machine, disk.Incarnation, machine.Now()
	if m.failed == nil {
		m.failed = make(chan struct{})
	}
	m.commit = newCommitter(disk, m.fail)
	disk.MakeCheckpoints(m.withMachine)
	commit := m.commit
	disk.Watch(func(error) { commit.checkFailure() })
	return nil
}

// hold implements durable.Hold.
func (m *Memory) withMachine(f func(*core.Machine)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machine == nil {
		return ErrClosed
	}
	f(m.machine)
	return nil
}

// stalled reports whether the disk has done nothing since this was last asked, though somebody has waited for it all the time. Then nobody is heard, whatever
// they say: it is as if the process stood still, and the time does not count.
func (m *Memory) stalled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disk == nil {
		return false
	}
	durable, waited := m.disk.Progress(), m.waited
	m.waited = m.commit.writing.Load()
	stalled := waited && m.waited && m.durable == durable
	if m.durable = durable; stalled {
		m.stopped += checkInterval
	}
	return stalled
}

// fail ends a store that cannot write any more: what it has acknowledged is there, and nothing more is.
func (m *Memory) fail(err error) {
	level := slog.LevelError
	if m.Replica != nil { // another process goes on with it
		level = slog.LevelWarn
	}
	logger(m.Logger).Log(context.Background(), level, "the store cannot go on", "dir", m.Dir, "err", err)
	m.mu.Lock()
	m.failure = err
	m.mu.Unlock()
	for _, l := range m.end(err) {
		l.close()
	}
	close(m.failed)
}

// Failed is closed when a durable store cannot write any more; Err says why.
func (m *Memory) Failed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = make(chan struct{})
	}
	return m.failed
}

// Err is why the store has failed.
func (m *Memory) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// applyLogged has the machine carry out a request, and writes it down. Called with mu.
func (m *Memory) applyLogged(now core.Time, session uint64, req *wire.Request, rep *wire.Reply) (answered bool) {
	m.meter.ops[int(req.Op)%len(m.meter.ops)]++
	if req.Op == wire.OpStatus {
		m.status(now, req, rep)
		return true
	}
	if m.disk == nil {
		return m.machine.Apply(now, session, req, rep)
	}
	// An entry whose time is over is not seen any more: then that time is to be in the log, or it would be back after a crash.
	if m.machine.Overdue(now) || m.logged < now && m.machine.Expiring(now) {
		m.machine.Advance(now)
		m.pos, m.logged = m.disk.Advance(now), now
	}
	answered = m.machine.Apply(now, session, req, rep)
	if m.machine.Logs(req.Op) {
		m.pos, m.logged = m.disk.Apply(now, session, req), now
	}
	return answered
}

// tickLogged lets happen what is due, and writes it down. Called with mu.
func (m *Memory) tickLogged(now core.Time) {
	at, armed := m.machine.Next()
	m.machine.Tick(now)
	switch {
	case m.disk == nil || !armed:
	case at <= now:
		m.pos, m.logged = m.disk.Tick(now), now
	case now-m.logged >= timeLogged:
		m.pos, m.logged = m.disk.Advance(now), now
		m.commit.requestWrite(m.position())
	}
}

// timeLogged is how often the time is written down while something is due later, if nothing else is. A restart goes on from the last time in the
// log: without that a store that is killed again and again before something is due would never get there.
const timeLogged = time.Second
