package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/muster-pg/muster/internal/blocking"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// backupPiece is how many bytes of a backup one reply returns.
const backupPiece = 1 << 20

// Backup writes a consistent copy of a durable store to w, as Restore reads it, and returns the
// number of bytes written. The store continues to serve meanwhile. The backup of a Prefix is
// ErrUnsupported: a backup always has the whole store.
func (s *Store) Backup(ctx context.Context, w io.Writer) (written int64, err error) {
	for id := uint64(0); ; {
		var rep wire.Reply
		if err := s.Do(ctx, &wire.Request{Op: wire.OpBackup, Offset: uint64(written)}, &rep); err != nil {
			return written, err
		}
		if written > 0 && rep.Rev != id {
			return written, &Error{Op: "backup", Code: wire.CodeStale, Err: ErrStale, Detail: "another backup by this client has begun: make one at a time"}
		}
		id = rep.Rev
		n, err := w.Write(rep.Value)
		written += int64(n)
		if err != nil || written >= rep.N {
			return written, err
		}
		if n == 0 {
			return written, &Error{Op: "backup", Code: wire.CodeUnavailable, Err: io.ErrUnexpectedEOF}
		}
	}
}

// Restore creates a store from a backup in dir, which does not exist or is empty. Sessions and the
// entries of their leases are not restored, because their clients may have continued since the
// backup.
func Restore(backup, dir string) error {
	err := durable.Restore(backup, dir)
	switch {
	case errors.Is(err, durable.ErrDamaged):
		return &Error{Op: "restore", Key: backup, Code: wire.CodeInvalid, Err: fmt.Errorf("%w: %w", ErrInvalid, err)}
	case err != nil:
		return &Error{Op: "restore", Key: backup, Code: wire.CodeUnavailable, Err: err}
	}
	return nil
}

// answerBackup is backup for a caller whose context may end meanwhile.
func (m *Memory) answerBackup(ctx context.Context, session, from uint64, rep *wire.Reply) (err error) {
	*rep, err = blocking.Do(ctx, func() (wire.Reply, error) { return m.backup(session, from) })
	return err
}

// backup returns a piece of a backup. The first request makes the backup, and keeps its file open
// for the others. It takes a while, and is called without mu.
func (m *Memory) backup(session, from uint64) (rep wire.Reply, err error) {
	f, err := m.backupFile(session, from)
	if err != nil {
		return rep, err
	}
	info, err := f.Stat()
	if err != nil {
		return rep, err
	}
	rep.Rev, rep.N = f.id, info.Size()
	rep.Value = make([]byte, max(0, min(backupPiece, rep.N-int64(from))))
	_, err = f.ReadAt(rep.Value, int64(from))
	if from+uint64(len(rep.Value)) >= uint64(rep.N) || err != nil {
		m.mu.Lock()
		m.closeBackup(session)
		m.mu.Unlock()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return rep, err
}

// backupFile makes a backup, or returns the one that session is reading.
func (m *Memory) backupFile(session, from uint64) (*backupCopy, error) {
	m.mu.Lock()
	err := m.open()
	disk, f := m.disk, m.backups[session]
	m.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case disk == nil:
		return nil, &Error{Op: "backup", Code: wire.CodeUnsupported, Err: ErrUnsupported, Detail: "this store is not durable"}
	case from > 0 && f != nil:
		return f, nil
	case from > 0:
		return nil, &Error{Op: "backup", Code: wire.CodeStale, Err: ErrStale, Detail: "the backup was dropped: start again"}
	}
	file, err := disk.Backup(m.withMachine)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machine == nil || !m.machine.Knows(session) { // the session has ended meanwhile
		_ = file.Close()
		return nil, ErrClosed
	}
	m.closeBackup(session)
	if m.backups == nil {
		m.backups = map[uint64]*backupCopy{}
	}
	m.backupsBegun++
	f = &backupCopy{file, m.backupsBegun}
	m.backups[session] = f
	return f, nil
}

// backupCopy is a backup that is being read.
type backupCopy struct {
	*os.File
	id uint64
}

// closeBackup closes the backup that session was reading. The caller holds mu.
func (m *Memory) closeBackup(session uint64) {
	if f := m.backups[session]; f != nil {
		_ = f.Close()
		delete(m.backups, session)
	}
}

// answerBackup answers a peer's OpBackup.
func (c *conn) answerBackup(session, from uint64) {
	c.answerLater(wire.OpBackup, func() *wire.Reply {
		rep, err := c.memory.backup(session, from)
		if err != nil {
			rep = wire.Reply{Code: failureCode(err), Detail: err.Error()}
			if e, ok := errors.AsType[*Error](err); ok {
				rep = wire.Reply{Code: e.Code, Detail: e.Detail}
			}
		}
		return &rep
	})
}
