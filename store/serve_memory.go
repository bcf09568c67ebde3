package store

import (
	"errors"
	"net"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// batch is how many requests a connection may have carried out before others get the lock.
const batch = 64

// unreadPause is how many bytes of answers may wait for a peer before its requests do.
const unreadPause = 1 << 20

// serveMemory serves c from m with a goroutine that reads: for connections that no loop can read.
func (c *conn) serveMemory(m *Memory, buf []byte) error {
	drained := make(chan struct{}, 1)
	resume := func() {
		select {
		case drained <- struct{}{}:
		default:
		}
	}
	c.out.Drained = resume
	held, err := c.open(m)
	for err == nil {
		if held {
			if c.out.Hold(unreadPause) || c.commit != nil && c.commit.hold(resume) {
				<-drained
			}
		} else if n, fault := c.nc.Read(c.in.room(buf)); n == 0 && fault != nil {
			return c.end(m, fault)
		} else {
			c.got(n)
		}
		held, err = c.carryOut(m)
	}
	return c.end(m, err)
}

// adopted begins to serve c from m on a socket that a loop reads.
func (c *conn) adopted(m *Memory, s *transport.Sock) (transport.Reader, error) {
	if err := c.begin(s); err != nil {
		return nil, err
	}
	c.out.Drained = func() { s.Pause(false) }
	r := &loopConn{conn: c, memory: m, sock: s}
	held, err := c.open(m)
	if err != nil {
		return nil, c.end(m, err)
	}
	r.pauseIf(held)
	return r, nil
}

// loopConn is a conn whose socket a loop reads.
type loopConn struct {
	*conn
	memory *Memory
	sock   *transport.Sock
}

// Readable implements transport.Reader.
func (c *loopConn) Readable(buf []byte) error {
	n, err := c.sock.Read(c.in.room(buf))
	if err != nil {
		return err
	}
	c.got(n)
	c.lazy = true
	held, err := c.carryOut(c.memory)
	c.in.giveBack()
	if held {
		c.flushStaged()
	}
	c.pauseIf(held)
	return err
}

// Flush implements transport.Reader.
func (c *loopConn) Flush() { c.flushStaged() }

// pauseIf stops reading until the peer has read, and the disk written. They may have done so already: then there was no pause to end.
func (c *loopConn) pauseIf(held bool) {
	if held {
		c.sock.Pause(true)
		if !c.out.Hold(unreadPause) && (c.commit == nil || !c.commit.hold(c.out.Drained)) {
			c.sock.Pause(false)
		}
	}
}

// Ended implements transport.Reader.
func (c *loopConn) Ended(err error) { c.server.ended(c.conn, c.end(c.memory, err)) }

// open opens the session, or takes it up again, answers the hello, and carries out what came right behind it.
func (c *conn) open(m *Memory) (held bool, err error) {
	var welcome wire.Reply
	before, err := m.attach(c, &c.hello, &welcome)
	if err != nil {
		return false, err
	}
	if before != nil {
		before.close()
	}
	held, err = c.carryOut(m)
	c.in.giveBack()
	return held, err
}

// end ends the session by goodbye, or lets go of it: it is lost if it is not taken up again in time.
func (c *conn) end(m *Memory, err error) error {
	if session := c.session.Load(); session != 0 {
		how := wire.OpLost
		if errors.Is(err, errDone) {
			how = wire.OpGoodbye
		}
		m.detachBranches(c, err)
		m.detach(session, c, how, c.grace())
	}
	if cause := c.out.Err(); cause != nil {
		return cause
	}
	return err
}

// carryOut carries out the requests that are whole, and answers them with one write. If the peer does not read
// what it asked for, or the disk does not write, the others are held: for Drained, and another carryOut. It never waits for the
// disk: it has other connections to read.
func (c *conn) carryOut(m *Memory) (held bool, err error) {
	for {
		more, full, crowded, err := c.turn(m)
		c.trunk.closeReplaced()
		if err != nil || full || crowded || !more && !c.lazy {
			c.flushStaged()
		}
		if err != nil {
			return false, err
		}
		if crowded || c.out.Hold(unreadPause) {
			return true, nil
		}
		if !more {
			return false, nil
		}
	}
}

// release ends a turn: m.release. Answers of a durable store stay staged until flushStaged; before the welcome has gone out, which is on
// its way through the committer, they follow it there.
func (c *conn) release(m *Memory) {
	if c.commit != nil && (c.parcels.Load() > 0 || c.trunk.welcomes()) {
		m.releaseTo(c, c.unstage())
		return
	}
	c.pos = m.pos
	m.release()
}

// mostUnsynced is how many events that nobody waits for may be in memory alone.
const mostUnsynced = 4096

// flushStaged writes what has been answered, or leaves it to the committer, until all that it shows is on the disk.
func (c *conn) flushStaged() {
	// what is never answered is not to pile up
	if len(c.staged) > 0 || c.commit != nil && c.parcels.Load() == 0 && c.pos > c.commit.disk.Durable()+mostUnsynced {
		p := parcel{pos: c.pos, to: c, staged: c.unstage()}
		if len(p.staged) > 0 {
			c.parcels.Add(1)
		}
		c.commit.put(p)
	}
	c.out.Flush()
}

// turn carries out a batch of requests under one lock; full is that the answers should be written first, crowded that the disk has to
// write before there are more.
func (c *conn) turn(m *Memory) (more, full, crowded bool, err error) {
	session := c.session.Load()
	crowded = c.commit != nil && c.commit.crowded()
	began := m.meter.begin()
	m.mu.Lock()
	if !m.attached(session, c) {
		m.mu.Unlock()
		return false, false, false, net.ErrClosed
	}
	defer c.release(m)
	now := m.now()
	m.meter.answered = 0
	defer func() { m.meter.end(began, m.meter.answered) }()
	for done := 0; done < batch; done += c.trunk.weight() {
		if op := c.in.op(); crowded && op != 0 && op != wire.OpStatus {
			return false, false, true, nil
		}
		if ok, err := c.next(); err != nil || !ok {
			return false, false, false, err
		}
		if full, err := c.step(m, now); err != nil || full {
			return full, full, false, err
		}
	}
	return true, false, false, nil
}

// step carries out what has been read; full is that many bytes of answers wait.
func (c *conn) step(m *Memory, now core.Time) (full bool, err error) {
	if c.trunk != nil && c.trunk.op != 0 {
		return c.stepBranches(m, now)
	}
	switch c.req.Op {
	case wire.OpProbe:
		return false, nil
	case wire.OpGoodbye:
		return false, errDone
	}
	return c.carry(m, now, c.session.Load()), nil
}

// passes reports whether an answer need not wait for the disk: nothing has to come before it. A connection's welcome has to, and a
// branch's, which is not distinguished from other answers of its trunk.
func (c *conn) passes() bool {
	if c.commit != nil && c.commit.disk.Shared() {
		return false
	}
	if c.commit == nil || c.trunk != nil {
		return c.parcels.Load() == 0 && len(c.staged) == 0
	}
	return c.greeted.Load()
}

// carry carries out c.req for a session, this connection's or that of the branch which it is of.
func (c *conn) carry(m *Memory, now core.Time, session uint64) (full bool) {
	code, why := wire.CodeDenied, c.refusal()
	if why == "" {
		code, why = wire.CodeFull, m.machine.Refuses(session, &c.req)
	}
	if why != "" {
		c.refuse(code, why, session, func(req *wire.Request, rep *wire.Reply) { m.applyLogged(now, session, req, rep) })
		return false
	}
	if c.req.Op == wire.OpBackup {
		c.answerBackup(m, session, c.req.ID, c.req.Rev)
		return false
	}
	if m.applyLogged(now, session, &c.req, &c.rep) && c.req.Op != wire.OpCancel {
		m.meter.answered++
		if c.req.Op == wire.OpStatus && c.passes() {
			return c.out.Append(func(b []byte) []byte { return c.encode(b, wire.OpStatus, c.req.ID, &c.rep) }) > unreadPause
		}
		return c.reply(c.req.Op, c.req.ID, &c.rep) > unreadPause
	}
	return false
}
