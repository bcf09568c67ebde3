package core_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// grace is how long a caller waits past its deadline, or its cancel, for the store's answer.
const grace = 250 * time.Millisecond

// proc is a process: one connection at a time, and the ranks that it is.
type proc struct {
	w        *world
	id       int
	local    bool // it is the one that holds the machine
	conn     *conn
	lastID   uint64
	dead     bool
	members  []*member
	tries    int // to meet again
	finished int // members that have nothing more to do
}

// conn is a connection, which is a session. Frames do not overtake each other in it.
type conn struct {
	p            *proc
	session      uint64
	cut          bool // nothing comes through any more
	ended        bool // as the server knows
	arriveServer core.Time
	arriveClient core.Time
	calls        map[uint64]*call // that have no answer yet
}

func (c *conn) String() string { return fmt.Sprintf("proc %d (session %d)", c.p.id, c.session) }

func (c *conn) latency() time.Duration {
	w := c.p.w
	switch {
	case c.p.local:
		return 0
	case w.chance(0.02):
		return w.between(time.Millisecond, w.odds.spike)
	}
	return w.between(20*time.Microsecond, 500*time.Microsecond)
}

// connect opens the session. It is there at once: what comes before is not the machine's.
func (p *proc) connect() {
	p.conn = &conn{p: p, calls: map[uint64]*call{}}
	if !p.local {
		var rep wire.Reply
		p.w.m.Apply(p.w.now, core.Local, &wire.Request{Op: wire.OpHello}, &rep)
		p.conn.session = uint64(rep.N)
		p.w.audit.connected(p.conn)
	}
	p.w.trace.note(p.w, "%v is there", p.conn)
}

// call is one request and what becomes of it.
type call struct {
	conn *conn
	req  wire.Request
	done func(rep *wire.Reply) // nil: unknown; the connection is gone, or no answer came in time
	over bool                  // for its caller

	// the auditor's
	at        core.Time // when it arrived
	arrived   bool
	cancelled bool
	waiting   bool
	refusal   wire.Code // how it must be refused
	vote      *vote
	record    *record
	group     *group
	stream    *stream
	roll      *roll
	expect    *wire.Reply // of an operation on keys
	waited    bool
}

func (cl *call) String() string {
	r := &cl.req
	c := &r.Group
	s := fmt.Sprintf("%s/%d", r.Op, r.ID)
	switch r.Op {
	case wire.OpJoin:
		s += fmt.Sprintf(" rank %d of %d %s %s from %d", c.Rank, c.Size, c.Group, c.Run, c.Generation)
	case wire.OpCollect:
		s += fmt.Sprintf(" g%d %q #%d rank %d %s root %d", c.Generation, c.Channel, c.Seq, c.Rank, c.Verb, c.Root)
	case wire.OpSend, wire.OpRecv:
		s += fmt.Sprintf(" g%d %q rank %d peer %d #%d", c.Generation, c.Channel, c.Rank, c.Root, c.Seq)
	case wire.OpLeave, wire.OpFollow, wire.OpExpire:
		s += fmt.Sprintf(" g%d rank %d", c.Generation, c.Rank)
	default:
		s += fmt.Sprintf(" %s %v", r.Key, r.Keys)
	}
	if r.Value != nil {
		s += fmt.Sprintf(" %.40q", r.Value)
	}
	if c.No != wire.CodeOK {
		s += fmt.Sprintf(" no: %s %s", c.No, c.Reason)
	}
	if r.Timeout > 0 {
		s += fmt.Sprintf(" within %v", r.Timeout)
	}
	return s
}

// say prints a reply.
type say struct{ rep *wire.Reply }

func (s say) String() string {
	var out strings.Builder
	out.WriteString(s.rep.Code.String())
	if s.rep.Detail != "" {
		out.WriteString(" (" + s.rep.Detail + ")")
	}
	if s.rep.N != 0 || s.rep.Rev != 0 {
		fmt.Fprintf(&out, " n=%d rev=%d", s.rep.N, s.rep.Rev)
	}
	if s.rep.Value != nil {
		fmt.Fprintf(&out, " %.40q", s.rep.Value)
	}
	for _, v := range s.rep.Values {
		fmt.Fprintf(&out, " %.40q", v)
	}
	if v := s.rep.Verdict; v != nil {
		fmt.Fprintf(&out, " by=%d missing=%v %q lost=%v left=%v %s", v.By, v.Missing, v.Doing, v.Lost, v.Left, v.Reason)
		for _, c := range v.Clash {
			fmt.Fprintf(&out, " {rank %d %s root %d}", c.Rank, c.Verb, c.Root)
		}
	}
	return out.String()
}

// call sends a request. If cancel is more than 0 the call is cancelled when that has passed.
func (p *proc) call(req wire.Request, cancel time.Duration, done func(*wire.Reply)) {
	w := p.w
	p.lastID++
	req.ID = p.lastID
	cl := &call{conn: p.conn, req: req, done: done}
	p.conn.calls[req.ID] = cl
	p.conn.post(cl)
	if cancel > 0 && (req.Timeout == 0 || cancel < req.Timeout) {
		w.after(cancel, func() { cl.withdraw() })
	}
	if req.Timeout > 0 {
		w.after(req.Timeout+grace, func() { cl.giveUp() })
	}
}

// post puts a frame on its way.
func (c *conn) post(cl *call) {
	w := c.p.w
	if c.cut || c.p.dead {
		return
	}
	frame := wire.AppendRequest(nil, &cl.req)
	c.arriveServer = max(c.arriveServer, w.now+c.latency())
	w.at(c.arriveServer, func() {
		if !c.cut {
			w.arrive(cl, frame)
		}
	})
}

// withdraw is the end of the caller's context: the store is told, and may still answer in time.
func (cl *call) withdraw() {
	if cl.over || cl.conn.p.dead {
		return
	}
	cl.conn.cancel(cl)
	cl.conn.p.w.after(grace, func() { cl.finish(nil) })
}

func (cl *call) giveUp() {
	if cl.over || cl.conn.p.dead {
		return
	}
	cl.conn.cancel(cl)
	cl.finish(nil)
}

func (c *conn) cancel(cl *call) {
	c.post(&call{conn: c, req: wire.Request{Op: wire.OpCancel, ID: cl.req.ID}})
}

// finish tells the caller. A call ends once.
func (cl *call) finish(rep *wire.Reply) {
	if cl.over {
		return
	}
	cl.over = true
	delete(cl.conn.calls, cl.req.ID)
	if !cl.conn.p.dead && !cl.conn.p.w.ending {
		cl.done(rep)
	}
}

// deliver is the client's reader.
func (c *conn) deliver(cl *call, rep *wire.Reply, frame []byte) {
	if c.cut || c.p.dead {
		return
	}
	if now := wire.AppendReply(nil, cl.req.Op, cl.req.ID, rep); !bytes.Equal(now, frame) {
		breaks("A3 an answer never changes", "%s: it was %q, and is %q", cl, frame, now)
	}
	h, err := wire.ParseHeader(frame, wire.MaxReply)
	var own wire.Reply
	if err == nil {
		err = own.Parse(h, frame[wire.HeaderLen:])
	}
	if err != nil {
		breaks("N2 what is encoded parses", "reply to %s: %v", cl, err)
	}
	if !cl.over {
		c.p.w.trace.note(c.p.w, "%v has %s: %s", c, cl, own.Code)
		c.p.w.audit.delivered(cl, &own)
	}
	cl.finish(&own)
}

// cutOff is a broken connection: what is on its way is lost, and both sides hear of it, sooner or later.
func (c *conn) cutOff() {
	w := c.p.w
	if c.cut || c.ended || c.p.dead || c.p.local {
		return
	}
	c.cut = true
	w.trace.note(w, "%v is cut off", c)
	w.after(w.between(0, 20*time.Millisecond), func() { c.end(wire.OpLost) })
	w.after(w.between(0, 20*time.Millisecond), c.broken)
}

// broken is the client's part: all calls end, and it may come again.
func (c *conn) broken() {
	if c.p.dead {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.calls)) {
		if cl := c.calls[id]; cl != nil {
			cl.finish(nil)
		}
	}
	p := c.p
	for _, mb := range p.members {
		mb.gen = 0
	}
	if p.tries++; p.tries > 2 || !p.w.chance(p.w.odds.again) {
		return
	}
	p.w.after(p.w.between(0, 30*time.Millisecond), func() {
		if !p.dead && !p.w.ending {
			p.connect()
			for _, mb := range p.members {
				mb.again()
			}
		}
	})
}

// die is a kill: what was sent may still arrive, nothing comes after it.
func (p *proc) die() {
	w := p.w
	c := p.conn
	if p.dead || c.ended || p.local {
		return
	}
	w.trace.note(w, "%v dies", c)
	p.dead = true
	if w.chance(0.5) {
		c.cut = true
	}
	at := w.now + w.between(0, 5*time.Millisecond)
	if !c.cut {
		at = max(at, c.arriveServer)
	}
	w.at(at, func() { c.end(wire.OpLost) })
}

// end is the server's part: the session ends, by goodbye or lost.
func (c *conn) end(how wire.Op) {
	if c.ended {
		return
	}
	w := c.p.w
	w.apply(&call{conn: c, req: wire.Request{Op: how}}, &wire.Request{Op: how})
	c.ended = true
}

// goodbye ends the session in order: the server hears it after all else.
func (p *proc) goodbye() {
	w := p.w
	c := p.conn
	if c.cut || c.ended || p.dead || p.local {
		return
	}
	p.dead = true
	c.arriveServer = max(c.arriveServer, w.now+c.latency())
	w.at(c.arriveServer, func() {
		if !c.cut {
			c.end(wire.OpGoodbye)
		}
	})
}

// shutdown ends all sessions, and looks at what is left.
func (w *world) shutdown() {
	w.ending = true
	w.trace.note(w, "the end")
	for _, p := range w.procs {
		switch {
		case p.local:
			w.retireLocal(p)
		case w.chance(0.5):
			p.conn.end(wire.OpLost)
		default:
			p.conn.end(wire.OpGoodbye)
		}
	}
	w.run()
	w.audit.end()
}

// retireLocal withdraws the calls of the process that holds the machine, and takes its ranks out.
func (w *world) retireLocal(p *proc) {
	for _, id := range slices.Sorted(maps.Keys(p.conn.calls)) {
		req := wire.Request{Op: wire.OpCancel, ID: id}
		w.apply(&call{conn: p.conn, req: req}, &req)
	}
	gs := slices.SortedFunc(maps.Values(w.audit.groups), func(a, b *group) int { return cmp.Compare(a.gen, b.gen) })
	for _, g := range gs {
		for rank, s := range g.seats {
			if s.session == core.Local && s.gone == wire.CodeOK {
				p.lastID++
				cl := &call{conn: p.conn, req: wire.Request{Op: wire.OpLeave, ID: p.lastID, Group: wire.Contribution{Generation: g.gen, Rank: rank}}}
				w.apply(cl, &cl.req)
			}
		}
	}
}
