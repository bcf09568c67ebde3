package store

import (
	"github.com/muster-pg/muster/wire"
)

// batch is how many requests a connection may have carried out before others get the lock.
const batch = 64

// unreadPause is how many bytes of answers may wait for a peer before no more of its requests are read.
const unreadPause = 1 << 20

// serveMemory serves c from m, without a goroutine or a copy between the two: what has been read
// together is carried out under one lock and answered with one write.
func (c *conn) serveMemory(m *Memory) error {
	session, err := m.attach(c)
	if err != nil {
		return err
	}
	c.reply(wire.OpHello, c.req.ID, &wire.Reply{N: int64(session)})
	c.out.Flush()
	c.session = session
	how := wire.OpLost
	for {
		if err = c.next(); err != nil {
			break
		}
		if err = c.carryOut(m); err != nil {
			if err == errDone {
				how = wire.OpGoodbye
			}
			break
		}
		c.out.Flush()
		if c.out.Waiting() > unreadPause {
			c.out.Rest()
		}
	}
	m.detach(session, how)
	return err
}

// carryOut carries out the request that was read, and those that lie behind it.
func (c *conn) carryOut(m *Memory) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	defer m.release()
	now := m.now()
	for range batch {
		switch c.req.Op {
		case wire.OpHello:
			return wire.ErrUnknownOp
		case wire.OpGoodbye:
			return errDone
		}
		if m.machine.Apply(now, c.session, &c.req, &c.rep) && c.req.Op != wire.OpCancel {
			c.reply(c.req.Op, c.req.ID, &c.rep)
		}
		if !c.in.whole() {
			break
		}
		if err := c.next(); err != nil {
			return err
		}
	}
	return nil
}
