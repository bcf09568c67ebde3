package core_test

import (
	"bytes"
	"fmt"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// conn is a connection. Its frames do not overtake each other.
type conn struct {
	s      *session // the client's
	serves uint64   // the session that the server has for it
	cut    bool     // no further frame reaches the client
	deaf   bool     // no further frame reaches the server
	gone   bool     // the client has noticed that it is broken
	fenced bool     // the server has another one for this session
	ended  bool     // the server has noticed that it is broken
	stall  core.Time

	relay        *relay // nil: connected to the server itself
	lostRelay    bool   // the relay has ended
	arriveRelay  core.Time
	arriveServer core.Time
	arriveClient core.Time
}

func (c *conn) latency() time.Duration {
	w := c.s.p.w
	switch {
	case c.s.p.local:
		return 0
	case w.chance(0.02):
		return w.between(time.Millisecond, w.odds.spike)
	}
	return w.between(20*time.Microsecond, 500*time.Microsecond)
}

// post sends a request.
func (c *conn) post(cl *call, req *wire.Request) {
	w := c.s.p.w
	if c.deaf || c.gone {
		return
	}
	frame := wire.AppendRequest(nil, req)
	if c.relay != nil {
		c.arriveRelay = max(c.arriveRelay, w.now+c.latency())
		w.at(c.arriveRelay, func() { c.relay.takes(c, cl, frame) })
		return
	}
	c.arriveServer = max(c.arriveServer, w.now+c.latency())
	w.at(c.arriveServer, func() { c.comes(cl, frame) })
}

// comes is the server's reader. A frame from a connection that it no longer reads is dropped: it
// may be older than one that came over a later connection.
func (c *conn) comes(cl *call, frame []byte) {
	w := c.s.p.w
	switch {
	case c.deaf:
	case c.stall > w.now:
		w.at(c.stall, func() { c.comes(cl, frame) })
	case c.fenced && !broke.fence:
		w.tally["frames dropped of old connections"]++
	case c.ended:
		// a real server would not pass it on, but the machine must refuse it
		if w.audit.sessions[c.serves] == nil && !w.down {
			w.tally["frames refused of lost sessions"]++
			w.applyFrame(&call{s: c.s, req: cl.req}, c.serves, frame)
		}
	default:
		s4NothingFromBefore(w, c, cl)
		w.applyFrame(cl, c.serves, frame)
		if wire.Op(frame[4]) == wire.OpGoodbye {
			c.ended = true
			delete(w.conns, c.serves)
		}
	}
}

// answer sends a reply.
func (c *conn) answer(cl *call, rep *wire.Reply, frame []byte, pos int) {
	w := c.s.p.w
	if c.fenced || c.ended {
		return
	}
	c.arriveClient = max(c.arriveClient, w.now+c.latency())
	w.at(c.arriveClient, func() { c.deliver(cl, rep, frame, pos) })
}

// deliver is the client's reader.
func (c *conn) deliver(cl *call, rep *wire.Reply, frame []byte, pos int) {
	w := c.s.p.w
	if c.cut || c.gone || c.s.p.dead {
		return
	}
	s8NothingBeyond(w, pos, cl)
	if now := wire.AppendReply(nil, cl.req.Op, cl.req.ID, rep); !bytes.Equal(now, frame) {
		breaks("A3 an answer never changes", "%s: it was %q, and is %q", cl, frame, now)
	}
	h, err := wire.ParseHeader(frame, wire.MaxReply)
	own := new(wire.Reply)
	if err == nil {
		err = own.Parse(h, frame[wire.HeaderLen:])
	}
	if err != nil {
		breaks("N2 what is encoded parses", "reply to %s: %v", cl, err)
	}
	if cl.req.Op == wire.OpHello {
		c.s.opened(c, own)
		return
	}
	if c.s.calls[h.ID] != cl {
		return // it has its answer already
	}
	if w.trace.verbose {
		w.trace.note(w, "proc %d has %s: %s", c.s.p.id, cl, own.Code)
	}
	w.delivered(cl, own)
	c.s.received(cl, own)
}

// cutOff breaks the connection: frames on their way to the client are lost, frames on their way to
// the server may be lost, or arrive late. Both sides notice, sooner or later.
func (c *conn) cutOff() {
	w := c.s.p.w
	if c.cut || c.ended || c.s.p.dead || c.s.p.local {
		return
	}
	c.cut = true
	if c.deaf = w.chance(0.4); !c.deaf {
		c.stall = w.now + w.between(0, 40*time.Millisecond)
	}
	w.trace.note(w, "proc %d is cut off (session %d)", c.s.p.id, c.serves)
	w.after(w.between(0, 20*time.Millisecond), c.noticed)
	w.after(w.between(0, 20*time.Millisecond), c.broken)
}

// kill breaks a connection whose server was killed.
func (c *conn) kill() {
	w := c.s.p.w
	c.cut, c.deaf, c.ended = true, true, true
	w.after(w.between(0, 5*time.Millisecond), c.broken)
}

// noticed is the server's handling of a broken connection. If it has a newer one for the session it
// does nothing else.
func (c *conn) noticed() { c.noticedBy("") }

// noticedBy is noticed, for a reason that other connections may share.
func (c *conn) noticedBy(why string) {
	w := c.s.p.w
	if c.ended {
		return
	}
	c.ended = true
	if w.conns[c.serves] == c {
		delete(w.conns, c.serves)
		w.lose(c.serves, w.grace, why)
	}
}

// broken is the client's handling of a broken connection: it dials again.
func (c *conn) broken() {
	s := c.s
	if c.gone {
		return
	}
	c.gone = true
	if s.conn == c {
		s.conn = nil
	}
	if s.dialing == c {
		s.dialing = nil
	}
	if s.conn == nil && s.dialing == nil {
		s.again()
	}
}

// session is a client's state that outlives its connections.
type session struct {
	p       *proc
	id      uint64 // 0: not open yet, or that of the process that holds the machine
	token   []byte
	conn    *conn
	dialing *conn
	calls   map[uint64]*call // without an answer yet, cancelled or not

	// the last number given to a request; the answers to all up to acked have arrived
	number, acked uint64
	answered      map[uint64]bool // beyond acked
	queue         []*call         // that have no number yet: too many answers are outstanding
}

func (p *proc) newSession() *session {
	return &session{p: p, calls: map[uint64]*call{}, answered: map[uint64]bool{}}
}

func (s *session) String() string { return fmt.Sprintf("proc %d (session %d)", s.p.id, s.id) }
