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

// serve implements Backend.
func (m *Memory) serve(c *conn, buf []byte) { c.serveBy(c, buf) }

// run implements reader.
func (c *conn) run(buf []byte) error {
	drained := make(chan struct{}, 1)
	resume := func() {
		select {
		case drained <- struct{}{}:
		default:
		}
	}
	c.out.Drained = resume
	held, err := c.open()
	for err == nil {
		if held {
			c.paused.Store(true)
			if c.out.Blocked(unreadPause) || c.log.resumeLater(resume) {
				<-drained
			}
			c.paused.Store(false)
		} else if n, fault := c.nc.Read(c.in.buffer(buf)); n == 0 && fault != nil {
			return c.end(fault)
		} else {
			c.got(n)
		}
		held, err = c.carryOut()
	}
	return c.end(err)
}

// adopted implements reader.
func (c *conn) adopted(s *transport.Sock) (transport.Reader, error) {
	if err := c.begin(s); err != nil {
		return nil, err
	}
	c.out.Drained = func() { c.pause(s, false) }
	r := &loopConn{conn: c, sock: s}
	held, err := c.open()
	if err != nil {
		return nil, c.end(err)
	}
	r.pauseIf(held)
	return r, nil
}

// loopConn is a conn whose socket a loop reads.
type loopConn struct {
	*conn
	sock *transport.Sock
}

// Readable implements transport.Reader.
func (c *loopConn) Readable(buf []byte) error {
	n, err := c.sock.Read(c.in.buffer(buf))
	if err != nil {
		return err
	}
	c.got(n)
	c.lazy = true
	held, err := c.carryOut()
	c.in.compact()
	if held {
		c.out.Flush()
	}
	c.pauseIf(held)
	return err
}

// Flush implements transport.Reader.
func (c *loopConn) Flush() { c.out.Flush() }

// pauseIf stops reading until the peer has read, and the disk written. They may have done so already: then there was no pause to end.
func (c *loopConn) pauseIf(held bool) {
	if held {
		c.pause(c.sock, true)
		if !c.out.Blocked(unreadPause) && !c.log.resumeLater(c.out.Drained) {
			c.pause(c.sock, false)
		}
	}
}

// pause stops or resumes reading from s, the socket of c.
func (c *conn) pause(s *transport.Sock, on bool) {
	c.paused.Store(on)
	s.Pause(on)
}

// Ended implements transport.Reader.
func (c *loopConn) Ended(err error) { c.server.ended(c.conn, c.end(err)) }

// open opens the session, or takes it up again, answers the hello, and carries out what came right behind it.
func (c *conn) open() (held bool, err error) {
	var welcome wire.Reply
	before, err := c.memory.attach(c, &c.hello, &welcome)
	if err != nil {
		return false, err
	}
	if before != nil {
		before.close()
	}
	held, err = c.carryOut()
	c.in.compact()
	return held, err
}

// end ends the session by goodbye, or lets go of it: it is lost if it is not taken up again in time.
func (c *conn) end(err error) error {
	if session := c.session.Load(); session != 0 {
		how := wire.OpLost
		if errors.Is(err, errDone) {
			how = wire.OpGoodbye
		}
		c.memory.detachBranches(c, err)
		c.memory.detach(session, c, how, c.grace())
	}
	if cause := c.out.Err(); cause != nil {
		return cause
	}
	return err
}

// carryOut carries out the requests that are whole, and answers them with one write. If the peer does not read
// what it asked for, or the disk does not write, the others are held: for Drained, and another carryOut. It never waits for the
// disk: it has other connections to read.
func (c *conn) carryOut() (held bool, err error) {
	for {
		more, full, overloaded, err := c.turn()
		c.trunk.closeReplaced()
		if err != nil || full || overloaded || !more && !c.lazy {
			c.out.Flush()
		}
		if err != nil {
			return false, err
		}
		if overloaded || c.out.Blocked(unreadPause) {
			return true, nil
		}
		if !more {
			return false, nil
		}
	}
}

// turn carries out a batch of requests under one lock; full means that the replies must be written first, overloaded that the log must be written
// write before there are more.
func (c *conn) turn() (more, full, overloaded bool, err error) {
	m := c.memory
	session := c.session.Load()
	overloaded = c.log.overloaded()
	began := m.meter.begin()
	m.mu.Lock()
	if !m.attached(session, c) {
		m.mu.Unlock()
		return false, false, false, net.ErrClosed
	}
	defer m.release()
	now := m.now()
	m.meter.answered = 0
	defer func() { m.meter.end(began, m.meter.answered) }()
	for done := 0; done < batch; done += c.trunk.weight() {
		if op := c.in.op(); overloaded && op != 0 && op != wire.OpStatus {
			return false, false, true, nil
		}
		if ok, err := c.next(); err != nil || !ok {
			return false, false, false, err
		}
		if full, err := c.step(now); err != nil || full {
			return full, full, false, err
		}
	}
	return true, false, false, nil
}

// step carries out what has been read; full is that many bytes of answers wait.
func (c *conn) step(now core.Time) (full bool, err error) {
	if c.trunk != nil && c.trunk.op != 0 {
		return c.stepBranches(now)
	}
	switch c.req.Op {
	case wire.OpProbe:
		return false, nil
	case wire.OpGoodbye:
		return false, errDone
	}
	return c.carry(now, c.session.Load()), nil
}

// carry carries out c.req for a session, this connection's or that of the branch which it is of.
func (c *conn) carry(now core.Time, session uint64) (full bool) {
	m := c.memory
	code, why := wire.CodeDenied, c.refusal()
	if why == "" {
		code, why = wire.CodeFull, m.machine.Refuses(session, &c.req)
	}
	if why != "" {
		c.refuse(now, session, code, why)
		return false
	}
	if c.req.Op == wire.OpBackup {
		c.answerBackup(session, c.req.ID, c.req.Rev)
		return false
	}
	if m.applyLogged(now, session, &c.req, &c.rep) && c.req.Op != wire.OpCancel {
		m.meter.answered++
		switch {
		case c.log == nil || c.log.disk.Shared():
		case c.req.Op == wire.OpStatus:
			return c.replyStatus() > unreadPause
		case c.req.Op == wire.OpPing: // it shows nothing of the log, and a peer sends it after its welcome
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, c.req.ID, &c.rep) }) > unreadPause
		}
		return c.reply(c.req.Op, c.req.ID, &c.rep) > unreadPause
	}
	return false
}

// replyStatus queues the reply to OpStatus. It does not wait for the disk, and overtakes what is held.
// The reply to the hello must come first, so it is released, too. On a relay's connection the reply
// waits, because what is held may be the reply to a hello.
func (c *conn) replyStatus() (waiting int) {
	encode := func(b []byte) []byte { return c.encode(b, wire.OpStatus, c.req.ID, &c.rep) }
	if c.trunk != nil {
		return c.out.Append(encode)
	}
	c.out.Release(c.welcomed)
	return c.out.AppendUrgent(encode)
}
