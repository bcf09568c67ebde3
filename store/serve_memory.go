package store

import (
	"errors"
	"fmt"
	"net"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// requestBatch is how many requests a connection may make before others get the lock.
const requestBatch = 64

// maxUnread is how many bytes of replies may wait for a peer before its requests have to wait.
const maxUnread = 1 << 20

// serve implements Backend.
func (m *Memory) serve(c *conn) { c.serveWith(c.adopted) }

// adopted opens the session of the connection, which is read from s.
func (c *conn) adopted(s transport.Socket) (transport.Reader, error) {
	if err := c.useSocket(s); err != nil {
		return nil, err
	}
	c.out.Drained = func() { c.pause(false) }
	held, err := c.openSession()
	if err != nil {
		c.endSession(err)
		return nil, err
	}
	c.pauseIf(held)
	return c, nil
}

// Buffer implements transport.Reader.
func (c *conn) Buffer(buf []byte) []byte { return c.in.Buffer(buf) }

// Received implements transport.Reader.
func (c *conn) Received(n int) error {
	c.receivedBytes(n)
	held, err := c.processRequests()
	c.in.Compact()
	if held {
		c.out.Flush()
	}
	c.pauseIf(held)
	return err
}

// Flush implements transport.Reader and sessionConn.
func (c *conn) Flush() { c.out.Flush() }

// pauseIf stops reading until the peer has read, or the log is written. If that has happened
// already, no callback would end the pause, and it is ended here.
func (c *conn) pauseIf(held bool) {
	if held {
		c.pause(true)
		if !c.out.Blocked(maxUnread) && !c.log.resumeLater(c.out.Drained) {
			c.pause(false)
		}
	}
}

// pause stops reading, or resumes it.
func (c *conn) pause(on bool) {
	c.paused.Store(on)
	c.sock.Pause(on)
}

// Ended implements transport.Reader.
func (c *conn) Ended(err error) {
	c.endSession(err)
	c.server.ended(c, err)
}

// openSession opens the session, or resumes it, answers the hello, and processes the requests that
// arrived with it.
func (c *conn) openSession() (held bool, err error) {
	var welcome wire.Reply
	before, err := c.memory.attach(c, &c.hello, &welcome)
	if err != nil {
		return false, err
	}
	if before != nil {
		before.close()
	}
	held, err = c.processRequests()
	c.in.Compact()
	c.out.Flush()
	return held, err
}

// endSession ends the session after a goodbye, or detaches it: its ranks fail if it is not resumed
// in time.
func (c *conn) endSession(err error) {
	if session := c.session.Load(); session != 0 {
		how := wire.OpLost
		if errors.Is(err, errDone) {
			how = wire.OpGoodbye
		}
		c.memory.detachRelayed(c, err)
		c.memory.detach(session, c, how, c.reconnectTimeout())
	}
}

// processRequests carries out the complete requests. Their replies are written by the Flush of its
// caller, or at once if they are many. If the peer does not read its replies, or the log is not
// written, the remaining requests are held until Drained is called. It never waits for the disk,
// because the same goroutine may read other connections.
func (c *conn) processRequests() (held bool, err error) {
	for {
		more, full, overloaded, err := c.processBatch()
		c.stream.closeReplaced()
		if err != nil || full || overloaded {
			c.out.Flush()
		}
		if err != nil {
			return false, err
		}
		if overloaded || c.out.Blocked(maxUnread) {
			return true, nil
		}
		if !more {
			return false, nil
		}
	}
}

// processBatch carries out a batch of requests under one lock. full means that the replies must be
// written before there are more, overloaded that the log must be written first.
func (c *conn) processBatch() (more, full, overloaded bool, err error) {
	m := c.memory
	session := c.session.Load()
	overloaded = c.log.overloaded()
	began := m.meter.begin()
	m.mu.Lock()
	if !m.attached(session, c) {
		m.mu.Unlock()
		return false, false, false, net.ErrClosed
	}
	defer m.unlockAndDeliver()
	now := m.now()
	m.meter.answered = 0
	defer func() { m.meter.end(began, m.meter.answered) }()
	for done := 0; done < requestBatch; done += c.stream.weight() {
		if overloaded {
			if h, ok := c.in.Peek(); ok && h.Op != wire.OpStatus && h.Op != wire.OpProbe && !isLiveness(h.Op, h.ID) {
				return false, false, true, nil
			}
		}
		if ok, err := c.next(); err != nil || !ok {
			return false, false, false, err
		}
		if full, err := c.process(now); err != nil || full {
			return full, full, false, err
		}
	}
	return true, false, false, nil
}

// process carries out the request that was read; full reports that too many bytes of replies wait.
func (c *conn) process(now core.Time) (full bool, err error) {
	if c.stream != nil && c.stream.op != 0 {
		return c.processRelayFrame(now)
	}
	switch c.req.Op {
	case wire.OpProbe:
		return false, nil
	case wire.OpGoodbye:
		return false, errDone
	}
	return c.execute(now, c.session.Load()), nil
}

// execute carries out c.req for a session: that of this connection, or of a relayed one.
func (c *conn) execute(now core.Time, session uint64) (full bool) {
	m := c.memory
	if c.req.Op == wire.OpStacks {
		c.executeStacks(session)
		return false
	}
	code, why := wire.CodeDenied, c.denialReason()
	if why == "" {
		code, why = wire.CodeFull, m.machine.Refuses(session, &c.req)
	}
	if why != "" {
		c.refuseRequest(now, session, code, why)
		return false
	}
	if c.req.Op == wire.OpBackup {
		if !c.refuseLater() {
			c.answerBackup(session, c.req.Offset)
		}
		return false
	}
	if m.applyLogged(now, session, &c.req, &c.rep) && c.req.Op != wire.OpCancel {
		m.meter.answered++
		switch {
		case c.log == nil || c.log.disk.Shared():
		case c.req.Op == wire.OpStatus:
			return c.replyStatus() > maxUnread
		case isLiveness(c.req.Op, c.req.ID): // peers send it only after the welcome
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, 0, new(wire.Reply)) }) > maxUnread
		}
		return c.reply(c.req.Op, c.req.ID, &c.rep) > maxUnread
	}
	return false
}

// isLiveness reports whether a request asks only whether the store answers: a ping of no call, whose answer
// shows nothing of the log, and does not wait for it. The answer to a call's ping shows the revision.
func isLiveness(op wire.Op, id uint64) bool { return op == wire.OpPing && id == 0 }

// maxLater is how many requests of a connection are carried out in goroutines at once.
const maxLater = 16

// refuseLater answers c.req with CodeFull if maxLater requests are under way in goroutines, and
// reports whether it has. The caller holds mu.
func (c *conn) refuseLater() bool {
	if c.later.Load() < maxLater {
		return false
	}
	c.reply(c.req.Op, c.req.ID, &wire.Reply{Code: wire.CodeFull, Detail: fmt.Sprintf("%d such requests of this connection are under way", maxLater)})
	return true
}

// answerLater answers c.req in a goroutine, because make takes a while. The caller holds mu, and
// refuseLater has returned false.
func (c *conn) answerLater(op wire.Op, make func() *wire.Reply) {
	c.later.Add(1)
	id, of := c.req.ID, c.current()
	c.server.wg.Go(func() {
		rep := make()
		c.later.Add(-1)
		c.out.Append(func(b []byte) []byte { return of.encode(b, op, id, rep) })
		c.out.Flush()
	})
}

// replyStatus queues the reply to OpStatus, which does not wait for the disk, and overtakes held
// replies. The reply to the hello must come first, so it is released too. On a relay's connection
// the status waits, because held replies may include replies to hellos.
func (c *conn) replyStatus() (waiting int) {
	encode := func(b []byte) []byte { return c.encode(b, wire.OpStatus, c.req.ID, &c.rep) }
	if c.stream != nil {
		return c.out.Append(encode)
	}
	c.out.Release(c.welcomed)
	return c.out.AppendUrgent(encode)
}
