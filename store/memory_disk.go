package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// Replica opens a log that this process leads, and returns the machine that has replayed it.
type Replica interface {
	Open(limits Limits, o *durable.Options) (*durable.Disk, *core.Machine, error)
	// Status returns the state of the replicas, without waiting.
	Status() *ReplicationStatus
}

// A durable Memory logs the events of its machine before any reply shows them.

// openDisk restores the machine from Dir or Replica. The caller holds mu.
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
		return &Error{Op: "open", Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	m.disk, m.machine, m.incarnation, m.loggedTime = disk, machine, disk.Incarnation, machine.Now()
	if m.failed == nil {
		m.failed = make(chan struct{})
	}
	m.commit = newCommitter(disk, m.fail)
	disk.MakeCheckpoints(m.withMachine)
	commit := m.commit
	disk.Watch(func(error) { commit.checkFailure() })
	return nil
}

// withMachine implements durable.WithMachine.
func (m *Memory) withMachine(f func(*core.Machine)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machine == nil {
		return ErrClosed
	}
	f(m.machine)
	return nil
}

// creditStall is called every checkInterval. If no request was read since the last call, because too
// much waits for a disk that has made no progress, the time does not count, as if the process had
// been stopped: renewals of leases wait in the sockets.
func (m *Memory) creditStall() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disk == nil {
		return
	}
	committed, waited := m.commit.Committed(), m.waitedForDisk
	m.waitedForDisk = m.commit.overloaded()
	if waited && m.waitedForDisk && m.lastCommitted == committed {
		m.stopped += checkInterval
	}
	m.lastCommitted = committed
}

// fail ends a store that can no longer write its log: all that it has acknowledged is in the log.
func (m *Memory) fail(err error) {
	level := slog.LevelError
	if m.Replica != nil { // another process continues
		level = slog.LevelWarn
	}
	logger(m.Logger).Log(context.Background(), level, "the store has failed", "dir", m.Dir, "err", err)
	m.mu.Lock()
	m.failure = err
	m.mu.Unlock()
	conns := m.endCalls(err)
	for _, c := range conns {
		if m.Replica == nil {
			c.fail(failedReply(err))
		} else { // its sessions go on there
			c.close()
		}
	}
	close(m.failed)
}

// failedReply returns the goodbye of a store that has failed with err.
func failedReply(err error) *wire.Reply {
	why := "the store cannot write to its disk"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		why = "no space left on the store's disk"
	}
	return &wire.Reply{Code: wire.CodeUnavailable, N: int64(wire.ReasonDisk), Detail: why}
}

// Failed returns a channel that is closed when a durable store can no longer write its log. Err
// returns the reason.
func (m *Memory) Failed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = make(chan struct{})
	}
	return m.failed
}

// Err returns why the store has failed, or nil.
func (m *Memory) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// applyLogged carries out a request on the machine, and logs it. The caller holds mu.
func (m *Memory) applyLogged(now core.Time, session uint64, req *wire.Request, rep *wire.Reply) (answered bool) {
	m.meter.ops[int(req.Op)%len(m.meter.ops)]++
	if req.Op == wire.OpStatus {
		m.status(now, req, rep)
		return true
	}
	if m.disk == nil {
		return m.machine.Apply(now, session, req, rep)
	}
	// Expired entries are invisible. The time at which they became so must be in the log, or a
	// replay would show them again.
	if m.machine.Overdue(now) || m.loggedTime < now && m.machine.Expiring(now) {
		m.machine.Advance(now)
		m.pos, m.loggedTime = m.disk.Advance(now), now
	}
	answered = m.machine.Apply(now, session, req, rep)
	if m.machine.Logs(req.Op) {
		m.pos, m.loggedTime = m.disk.Apply(now, session, req), now
	}
	return answered
}

// tickLogged processes due events, and logs them. The caller holds mu.
func (m *Memory) tickLogged(now core.Time) {
	_, armed := m.machine.Next()
	due := m.machine.Due(now)
	m.machine.Tick(now)
	switch {
	case m.disk == nil || !armed:
	case due:
		m.pos, m.loggedTime = m.disk.Tick(now), now
	case now-m.loggedTime >= timeLogInterval:
		m.pos, m.loggedTime = m.disk.Advance(now), now
		m.commit.requestWrite(m.position())
	}
	for session, req, ok := m.machine.Stalled(now); ok; session, req, ok = m.machine.Stalled(now) {
		m.applyLogged(now, session, req, new(wire.Reply))
	}
}

// timeLogInterval is how often the time is logged while a deadline is pending and nothing else is
// logged. A restart continues with the last logged time: without this, a store that is killed
// repeatedly would never reach the deadline.
const timeLogInterval = time.Second

// log opens m, and returns its committer, which is nil if m is not durable.
func (m *Memory) log() (*committer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.open()
	return m.commit, err
}
