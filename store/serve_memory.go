package store

import (
	"net"

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
	c.out.Drained = func() {
		select {
		case drained <- struct{}{}:
		default:
		}
	}
	err := c.open(m)
	for err == nil {
		for c.out.Waiting() > unreadPause && c.out.Err() == nil {
			<-drained
		}
		var n int
		n, err = c.nc.Read(c.in.room(buf))
		if c.in.got(n); n > 0 {
			err = c.carryOut(m)
		}
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
	if err := c.open(m); err != nil {
		return nil, c.end(m, err)
	}
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
	c.in.got(n)
	err = c.carryOut(c.memory)
	c.in.giveBack()
	if err == nil && c.out.Waiting() > unreadPause {
		c.sock.Pause(true)
		if c.out.Waiting() == 0 { // drained before the pause
			c.sock.Pause(false)
		}
	}
	return err
}

// Ended implements transport.Reader.
func (c *loopConn) Ended(err error) { c.server.ended(c.conn, c.end(c.memory, err)) }

// open opens the session, answers the hello, and carries out what came right behind it.
func (c *conn) open(m *Memory) error {
	session, err := m.attach(c)
	if err != nil {
		return err
	}
	c.session = session
	c.reply(wire.OpHello, c.id, &wire.Reply{N: int64(session)})
	err = c.carryOut(m)
	c.in.giveBack()
	return err
}

// end ends the session: by goodbye, or lost.
func (c *conn) end(m *Memory, err error) error {
	if c.session != 0 {
		how := wire.OpLost
		if err == errDone {
			how = wire.OpGoodbye
		}
		m.detach(c.session, how)
	}
	if cause := c.out.Err(); cause != nil {
		return cause
	}
	return err
}

// carryOut carries out the requests that are whole, and answers them with one write.
func (c *conn) carryOut(m *Memory) error {
	for {
		more, err := c.turn(m)
		if err != nil || !more {
			c.out.Flush()
			return err
		}
	}
}

// turn carries out a batch of requests under one lock.
func (c *conn) turn(m *Memory) (more bool, err error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false, net.ErrClosed
	}
	defer m.release()
	now := m.now()
	for range batch {
		if ok, err := c.next(); err != nil || !ok {
			return false, err
		}
		switch c.req.Op {
		case wire.OpHello:
			return false, wire.ErrUnknownOp
		case wire.OpGoodbye:
			return false, errDone
		}
		if m.machine.Apply(now, c.session, &c.req, &c.rep) && c.req.Op != wire.OpCancel {
			c.reply(c.req.Op, c.req.ID, &c.rep)
		}
	}
	return true, nil
}
