package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Which goroutine reads. A goroutine that only reads would cost every call a pass through the
// scheduler, and where processes outnumber cores that is a large part of a barrier. Therefore a
// caller that waits for a reply reads, for all callers, until it has its own. If others still wait
// then, a background goroutine reads until none does. It also reads when there was no call for a
// while, to detect the end of the connection.

// idleAfter is the time without a call after which the background goroutine reads.
const idleAfter = 5 * time.Millisecond

// readTurn is the right to read from the connection. The client's mu protects its fields.
type readTurn struct {
	taken       bool
	leader      uint64 // id of the call whose caller reads; 0: the background goroutine
	interrupted bool   // the leader's read was ended by a deadline
	idle        *time.Timer
	timerSet    bool // idle is running
	called      bool // there was a call since idle was started
	wg          sync.WaitGroup
}

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// readUntil reads, unless another goroutine does, until call id is answered, ctx ends, or the
// connection ends.
func (c *client) readUntil(ctx context.Context, id uint64) {
	l := c.acquireTurn(id)
	if l == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { c.interrupt(id) })
	defer stop()
	for {
		answered, err := c.readOne(l)
		switch {
		case err != nil && c.wasInterrupted():
			c.releaseTurn()
			return
		case err != nil:
			c.connEnded(l, err)
			return
		case answered == id:
			c.releaseTurn()
			return
		}
	}
}

// acquireTurn gives the turn to the caller of id, unless another goroutine has it, or has already
// read the reply.
func (c *client) acquireTurn(id uint64) *clientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readTurn.taken || c.calls[id] == nil || c.conn == nil {
		return nil
	}
	c.readTurn.taken, c.readTurn.leader = true, id
	return c.conn
}

// interrupt ends the read of the leader, if that is still the caller of id.
func (c *client) interrupt(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readTurn.taken && c.readTurn.leader == id {
		c.stopLeader()
	}
}

// stopLeader ends the read of the leader, if a caller reads. The caller holds mu.
func (c *client) stopLeader() {
	if c.readTurn.leader != 0 {
		c.readTurn.interrupted = true
		_ = c.conn.nc.SetReadDeadline(longAgo)
	}
}

func (c *client) wasInterrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readTurn.interrupted
}

// releaseTurn passes the turn to a background goroutine if calls wait, or Close does, and otherwise
// to the next caller.
func (c *client) releaseTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.readTurn
	t.leader = 0
	if t.interrupted {
		t.interrupted = false
		until := time.Time{}
		if c.closed {
			until = time.Now().Add(goodbyeTimeout)
		}
		_ = c.conn.nc.SetReadDeadline(until)
	}
	if len(c.calls) > 0 || c.closed {
		l := c.conn
		t.wg.Go(func() { c.readLoop(l) })
		return
	}
	c.freeTurn()
}

// freeTurn leaves the turn to the next caller, or, when there is none for a while, to the
// background goroutine. The caller holds mu.
func (c *client) freeTurn() {
	t := &c.readTurn
	t.taken = false
	if !t.timerSet {
		t.timerSet = true
		t.idle.Reset(idleAfter)
	}
}

// onIdle runs when the idle timer fires: it starts the background goroutine, or the timer again if
// there was a call.
func (c *client) onIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.readTurn
	t.timerSet = false
	switch {
	case c.closed || t.taken || c.conn == nil:
	case t.called:
		t.called = false
		t.timerSet = true
		t.idle.Reset(idleAfter)
	default:
		t.taken, t.leader = true, 0
		l := c.conn
		t.wg.Go(func() { c.readLoop(l) })
	}
}

// readLoop reads until no call waits, or the connection ends. The caller has the turn.
func (c *client) readLoop(l *clientConn) {
	for {
		if _, err := c.readOne(l); err != nil {
			c.connEnded(l, err)
			return
		}
		if c.freeTurnIfUnused() {
			return
		}
	}
}

// freeTurnIfUnused frees the turn if no call waits.
func (c *client) freeTurnIfUnused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) > 0 || c.closed {
		return false
	}
	c.freeTurn()
	return true
}

// drain makes sure that a goroutine reads until the connection ends, for at most goodbyeTimeout.
func (c *client) drain(l *clientConn) {
	_ = l.nc.SetReadDeadline(time.Now().Add(goodbyeTimeout))
	c.mu.Lock()
	mine := !c.readTurn.taken
	c.readTurn.taken = true
	c.stopLeader()
	c.mu.Unlock()
	if mine {
		c.readLoop(l)
	}
}

// readOne reads a frame, and completes its call unless that was abandoned.
func (c *client) readOne(l *clientConn) (id uint64, err error) {
	h, body, owned, err := l.in.Read(l.nc, l.buf)
	if err != nil {
		return 0, err
	}
	c.received.Store(true)
	if h.ID == 0 {
		return 0, l.handleServerFrame(h, body)
	}
	l.gotReply = true
	if h.Op == wire.OpGoodbye {
		return h.ID, c.handleRefusal(h, body)
	}
	if h.Code == wire.CodeAgain && c.retryLater(l, h.ID) {
		return 0, nil
	}
	call := c.takeCall(h.ID)
	if call == nil {
		return h.ID, nil // the reply to a cancel, or to an abandoned call
	}
	if len(body) > 0 && !owned {
		body = append(make([]byte, 0, len(body)), body...)
	}
	err = call.rep.Parse(h, body)
	if err == nil && !isComplete(call.req, call.rep) {
		err = fmt.Errorf("%w (%v)", errIncomplete, call.req.Op)
	}
	if err == nil && h.Code == wire.CodeOK {
		c.recordResult(call)
	}
	if err != nil {
		call.end(c.connError(l, err))
		return h.ID, err
	}
	if call.number != 0 && len(body) > ackAtOnceBytes {
		c.acknowledge()
	}
	call.end(nil)
	return h.ID, nil
}

// isComplete reports whether a reply has as many elements as its request asks for; callers index
// them without checks.
func isComplete(req *wire.Request, rep *wire.Reply) bool {
	keys, values, nums := len(rep.Keys), len(rep.Values), len(rep.Nums)
	switch {
	case rep.Code != wire.CodeOK:
		return true
	case req.Op == wire.OpWait:
		return values == len(req.Keys)
	case req.Op == wire.OpList:
		return (values == keys || req.KeysOnly) && nums == 2*keys && (keys > 0 || rep.N == 0)
	case req.Op == wire.OpWatch:
		return values == keys && nums == 2*keys
	}
	return true
}

var errIncomplete = errors.New("incomplete reply")

// handleRefusal ends the call whose frame the store could not parse, without resending it. Its
// number stays in use, and is skipped when the session is resumed.
func (c *client) handleRefusal(h wire.Header, body []byte) error {
	var rep wire.Reply
	if err := rep.Parse(h, bytes.Clone(body)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[h.ID]
	if call == nil {
		return nil
	}
	delete(c.calls, h.ID)
	delete(c.cancelled, h.ID)
	c.numbers.abandon(call)
	e := &Error{
		Op: call.req.Op.String(), Code: rep.Code, Err: cmp.Or(CodeError(rep.Code), ErrProtocol), Detail: "the store rejected the request: " + rep.Detail,
	}
	e.setSubject(call.req)
	call.end(e)
	return nil
}

// handleServerFrame handles a frame that is not a reply.
func (l *clientConn) handleServerFrame(h wire.Header, body []byte) error {
	switch h.Op {
	case wire.OpGoodbye:
		return goodbyeError(h, body)
	case wire.OpProbe:
		l.send(&wire.Request{Op: wire.OpProbe})
	case wire.OpStacks:
		l.send(&wire.Request{Op: wire.OpStacks, Value: processStacks()})
	}
	l.out.Flush()
	return nil
}

// goodbyeError returns errGoodbye for a store that has shut down, and for one that has failed its
// reason.
func goodbyeError(h wire.Header, body []byte) error {
	var rep wire.Reply
	if h.Code != wire.CodeUnavailable || rep.Parse(h, bytes.Clone(body)) != nil {
		return errGoodbye
	}
	return &Error{Code: rep.Code, Err: ErrUnavailable, Detail: rep.Detail, Reason: wire.Reason(rep.N)}
}

// goodbyeOf returns the goodbye that err is of, for the peers of a relay; nil if there was none.
func goodbyeOf(err error) *wire.Reply {
	if failed, ok := errors.AsType[*Error](err); ok && failed.Reason == wire.ReasonDisk {
		return &wire.Reply{Code: failed.Code, N: int64(failed.Reason), Detail: failed.Detail}
	}
	if errors.Is(err, errGoodbye) {
		return &wire.Reply{Code: wire.CodeLeft}
	}
	return nil
}

// recordResult records the ranks and leases of this session.
func (c *client) recordResult(call *clientCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch call.req.Op {
	case wire.OpJoin:
		c.session.joined[call.rep.Rev] = true
	case wire.OpGrant:
		c.session.leases[uint64(call.rep.N)] = true
	case wire.OpRevoke:
		delete(c.session.leases, call.req.Lease)
	}
}
