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

// Who reads. A goroutine that does nothing but read would cost every call a pass through the
// scheduler, and where processes outnumber cores that is a good part of a barrier. So whoever waits for a reply reads, for
// all, until it has its own. If others still wait then, a goroutine reads on until nobody does; it also reads when
// nobody has called for a while, to hear of the connection's end.

// idleAfter is how long nobody calls before a goroutine listens.
const idleAfter = 5 * time.Millisecond

// turn is the turn to read. Its fields are protected by client.mu.
type turn struct {
	taken       bool
	leader      uint64 // the call whose caller has it; 0 is the goroutine
	interrupted bool   // the leader's read has been ended by a deadline
	idle        *time.Timer
	armed       bool // idle is set
	used        bool // there was a call since
	background  sync.WaitGroup
}

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// lead reads, if nobody else does, until call id is answered, ctx ends, or the connection does.
func (c *client) lead(ctx context.Context, id uint64) {
	l := c.takeTurn(id)
	if l == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { c.interrupt(id) })
	defer stop()
	for {
		answered, err := c.readOne(l)
		switch {
		case err != nil && c.wasInterrupted():
			c.passTurn()
			return
		case err != nil:
			c.broke(l, err)
			return
		case answered == id:
			c.passTurn()
			return
		}
	}
}

// takeTurn makes the caller of id the reader, unless somebody else is, or has read its reply already.
func (c *client) takeTurn(id uint64) *line {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn.taken || c.calls[id] == nil || c.line == nil {
		return nil
	}
	c.turn.taken, c.turn.leader = true, id
	return c.line
}

// interrupt ends the read of the leader, if that still is the caller of id.
func (c *client) interrupt(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn.taken && c.turn.leader == id {
		c.stopLeader()
	}
}

// stopLeader ends the read of the caller who has the turn, if it is one. Called with mu.
func (c *client) stopLeader() {
	if c.turn.leader != 0 {
		c.turn.interrupted = true
		_ = c.line.conn.SetReadDeadline(longAgo)
	}
}

func (c *client) wasInterrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turn.interrupted
}

// passTurn gives the turn to a goroutine if somebody waits, or Close does; otherwise to the next caller.
func (c *client) passTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.turn
	t.leader = 0
	if t.interrupted {
		t.interrupted = false
		until := time.Time{}
		if c.closed {
			until = time.Now().Add(goodbyeTime)
		}
		_ = c.line.conn.SetReadDeadline(until)
	}
	if len(c.calls) > 0 || c.closed {
		l := c.line
		t.background.Go(func() { c.readOn(l) })
		return
	}
	c.rest()
}

// rest leaves the turn to the next caller, or to the goroutine that listens when there is none for a while. Called with mu.
func (c *client) rest() {
	t := &c.turn
	t.taken = false
	if !t.armed {
		t.armed = true
		t.idle.Reset(idleAfter)
	}
}

// rested is what the idle timer does: it looks again, or listens.
func (c *client) rested() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.turn
	t.armed = false
	switch {
	case c.closed || t.taken || c.line == nil:
	case t.used:
		t.used = false
		t.armed = true
		t.idle.Reset(idleAfter)
	default:
		t.taken, t.leader = true, 0
		l := c.line
		t.background.Go(func() { c.readOn(l) })
	}
}

// readOn reads until nobody waits, or the connection ends. It has the turn.
func (c *client) readOn(l *line) {
	for {
		if _, err := c.readOne(l); err != nil {
			c.broke(l, err)
			return
		}
		if c.quiet() {
			return
		}
	}
}

// quiet gives up the turn if nobody waits.
func (c *client) quiet() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.calls) > 0 || c.closed {
		return false
	}
	c.rest()
	return true
}

// readToEnd sees to it that somebody reads until the connection ends, and no longer than goodbyeTime.
func (c *client) readToEnd(l *line) {
	_ = l.conn.SetReadDeadline(time.Now().Add(goodbyeTime))
	c.mu.Lock()
	mine := !c.turn.taken
	c.turn.taken = true
	c.stopLeader()
	c.mu.Unlock()
	if mine {
		c.readOn(l)
	}
}

// readOne reads a frame and completes its call, if somebody still waits for it.
func (c *client) readOne(l *line) (id uint64, err error) {
	h, body, owned, err := readFrame(l.conn, l.in, l.buf)
	if err != nil {
		return 0, err
	}
	c.heard.Store(true)
	if h.ID == 0 {
		return 0, c.told(l, h.Op)
	}
	l.brought = true
	if h.Op == wire.OpGoodbye {
		return h.ID, c.refused(h, body)
	}
	if h.Code == wire.CodeAgain && c.again(l, h.ID) {
		return 0, nil
	}
	call := c.take(h.ID)
	if call == nil {
		return h.ID, nil // a cancel's answer, or that of a call that was given up
	}
	if len(body) > 0 && !owned {
		body = append(make([]byte, 0, len(body)), body...)
	}
	err = call.rep.Parse(h, body)
	if err == nil && !fits(call.req, call.rep) {
		err = fmt.Errorf("%w (%v)", errUnfit, call.req.Op)
	}
	if err == nil && h.Code == wire.CodeOK {
		c.note(call)
	}
	if err != nil {
		call.end(c.broken(l, err))
		return h.ID, err
	}
	if call.number != 0 && len(body) > acknowledgeAtOnce {
		c.acknowledge()
	}
	call.end(nil)
	return h.ID, nil
}

// fits reports whether an answer has as much as its request asks for, which its users count on.
func fits(req *wire.Request, rep *wire.Reply) bool {
	keys, values, nums := len(rep.Keys), len(rep.Values), len(rep.Nums)
	switch {
	case rep.Code != wire.CodeOK:
		return true
	case req.Op == wire.OpWait, req.Op == wire.OpTake:
		return values == len(req.Keys)
	case req.Op == wire.OpList:
		return (values == keys || req.Delta < 0) && nums == 2*keys && (keys > 0 || rep.N == 0)
	case req.Op == wire.OpWatch:
		return values == keys && nums == 2*keys
	}
	return true
}

var errUnfit = errors.New("an answer without all that was asked for")

// refused ends the call whose frame the store cannot read: to send it again would bring that again. The number that it had stays open, and
// is skipped when the session is resumed.
func (c *client) refused(h wire.Header, body []byte) error {
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
		Op: call.req.Op.String(), Code: rep.Code, Err: cmp.Or(CodeError(rep.Code), ErrProtocol), Detail: "the store refuses the request: " + rep.Detail,
	}
	e.about(call.req)
	call.end(e)
	return nil
}

// told is what the store says without having been asked.
func (c *client) told(l *line, op wire.Op) error {
	switch op {
	case wire.OpGoodbye:
		return errGoodbye
	case wire.OpProbe:
		l.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpProbe}) })
		l.out.Flush()
	}
	return nil
}

// note notes that a rank has joined in this session, or that a lease is its.
func (c *client) note(call *clientCall) {
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
