package core_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// reconnectTimer is how long a caller waits for the store's answer past its deadline, or its
// cancel.
const reconnectTimer = 250 * time.Millisecond

// proc is a process: one session at a time, and its ranks.
type proc struct {
	w        *world
	id       int
	local    bool // it holds the machine
	session  *session
	links    []*conn // whose frames may still arrive
	relay    *relay  // nil: it connects to the server
	lastID   uint64
	dead     bool
	begun    bool
	members  []*member
	tries    int // attempts to dial again
	finished int // members without any work left
}

// call is one request and its state.
type call struct {
	s    *session
	conn *conn // of a hello
	req  wire.Request
	// called with nil if unknown: the session is gone, or no answer came in time
	done      func(rep *wire.Reply)
	until     core.Time // its deadline, in the world's time
	over      bool      // ended for its caller
	withdrawn bool      // its caller has cancelled, and waits a little for the answer
	why       wire.Code // why it was cancelled
	audited
}

// audited is the auditor's part of a call, set each time that the call arrives.
type audited struct {
	session    uint64
	op         wire.Op // a skip may come instead of it
	number     uint64
	at         core.Time // when it arrived
	timeout    time.Duration
	cancelled  wire.Code // CodeCancelled, or CodeTimeout if the caller's deadline has passed
	waiting    bool
	waited     bool
	repeated   bool      // a numbered request that was applied before
	refusal    wire.Code // the expected refusal
	vote       *vote
	record     *record
	group      *group
	stream     *stream
	rendezvous *rendezvous
	ends       timer       // its deadline, while it waits
	superseded bool        // replaced by a later attempt of its process
	expect     *wire.Reply // of an operation on keys
}

// as prints the call under the op that arrived, which may be a skip.
func (cl *call) as(req *wire.Request) string {
	if cl.req.Op != req.Op {
		return fmt.Sprintf("%s for %s", req.Op, cl)
	}
	return cl.String()
}

func (cl *call) String() string {
	r := &cl.req
	c := &r.Group
	s := fmt.Sprintf("%s/%d", r.Op, r.ID)
	if r.Number > 0 {
		s += fmt.Sprintf(" (number %d)", r.Number)
	}
	switch r.Op {
	case wire.OpJoin:
		s += fmt.Sprintf(" rank %d of %d %s %s from %d", c.Rank, c.Size, c.Group, c.Run, c.Generation)
	case wire.OpCollect:
		s += fmt.Sprintf(" g%d %q #%d rank %d %s root %d", c.Generation, c.Channel, c.Seq, c.Rank, c.Verb, c.Root)
	case wire.OpSend, wire.OpRecv, wire.OpSendReady, wire.OpCloseChannel, wire.OpAck:
		s += fmt.Sprintf(" g%d %q rank %d peer %d #%d", c.Generation, c.Channel, c.Rank, c.Root, c.Seq)
	case wire.OpMembers:
		s += fmt.Sprintf(" g%d rank %d from %d: %d", c.Generation, c.Rank, r.First, r.Count)
	case wire.OpLeave, wire.OpFollow, wire.OpExpired:
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
	if v := s.rep.Failure; v != nil {
		fmt.Fprintf(&out, " by=%d missing=%v %q lost=%v left=%v %s", v.By, v.Missing, v.Doing, v.Lost, v.Left, v.Reason)
		for _, c := range v.Clash {
			fmt.Fprintf(&out, " {rank %d %s root %d}", c.Rank, c.Verb, c.Root)
		}
	}
	return out.String()
}

// call sends a request. If cancel is positive the call is cancelled when that time has passed.
func (p *proc) call(req wire.Request, cancel time.Duration, done func(*wire.Reply)) *call {
	return p.callWithin(req, req.Timeout, cancel, done)
}

// callWithin is call for a call whose deadline only its caller keeps, since it does not wait at the
// store.
func (p *proc) callWithin(req wire.Request, timeout, cancel time.Duration, done func(*wire.Reply)) *call {
	w := p.w
	p.lastID++
	req.ID = p.lastID
	cl := &call{s: p.session, req: req, done: done, until: w.now + timeout}
	cl.s.send(cl)
	if cancel > 0 && (timeout == 0 || cancel < timeout) {
		w.after(cancel, func() { cl.withdraw() })
	}
	if timeout > 0 {
		w.after(timeout+reconnectTimer, func() { cl.giveUp() })
	}
	return cl
}

// withdraw ends the caller's context: the store gets a cancel, and may still answer in time.
func (cl *call) withdraw() {
	if cl.over || cl.s.p.dead {
		return
	}
	cl.withdrawn, cl.why = true, wire.CodeCancelled
	if cl.s.p.w.chance(0.2) { // its deadline has passed by a clock that is ahead of the store's
		cl.why = wire.CodeTimeout
	}
	cl.s.cancel(cl)
	cl.s.p.w.after(cl.cancelWait(), func() { cl.finish(nil) })
}

// cancelWait is how long a caller whose context has ended waits for the answer. A caller may not want
// to wait for a change.
func (cl *call) cancelWait() time.Duration {
	if cl.req.Op.Numbered() || cl.s.conn == nil {
		return 0
	}
	return reconnectTimer
}

func (cl *call) giveUp() {
	if cl.over || cl.s.p.dead {
		return
	}
	cl.why = wire.CodeTimeout
	cl.s.cancel(cl)
	cl.finish(nil)
}

// finish passes the answer to the caller. A call ends once.
func (cl *call) finish(rep *wire.Reply) {
	if cl.over {
		return
	}
	cl.over = true
	if cl.done != nil && !cl.s.p.dead && !cl.s.p.w.ending {
		cl.done(rep)
	}
}

// begin does the work of a process that has its own session.
func (p *proc) begin() {
	w := p.w
	for _, mb := range p.members {
		mb.gen, mb.open = 0, 0
	}
	for _, mb := range p.members {
		if mb.plan.parent == nil {
			mb.join(0)
		}
	}
	if w.chance(w.odds.keys) {
		(&errands{p: p, s: p.session, left: 5 + w.upTo(15)}).next()
	}
	if p.local || p.begun {
		return
	}
	p.begun = true
	fate := w.between(0, 30*time.Millisecond)
	switch {
	case w.chance(w.odds.die):
		w.after(fate, p.die)
	case w.chance(w.odds.cut):
		w.after(fate, p.cutOff)
	}
}

func (p *proc) cutOff() {
	w := p.w
	if p.session.conn != nil && !p.dead {
		p.session.conn.cutOff()
	}
	if w.chance(0.5) {
		w.after(w.between(0, 40*time.Millisecond), p.cutOff)
	}
}

// die kills the process: frames that were sent may still arrive, none is sent after it.
func (p *proc) die() {
	w := p.w
	if p.dead || p.local {
		return
	}
	w.trace.note(w, "proc %d dies", p.id)
	p.dead = true
	for _, c := range p.links {
		c.deaf = c.deaf || w.chance(0.5)
		at := w.now + w.between(0, 5*time.Millisecond)
		if !c.deaf {
			at = max(at, c.arriveServer)
		}
		w.at(at, c.noticed)
	}
}

// goodbye closes the session in order: the server gets it after all other requests.
func (p *proc) goodbye() {
	c := p.session.conn
	if c == nil || c.cut || p.dead || p.local || len(p.session.queue) > 0 {
		return
	}
	req := wire.Request{Op: wire.OpGoodbye}
	c.post(&call{s: p.session, req: req}, &req)
	p.dead = true
}

// shutdown ends all sessions, and checks what is left.
func (w *world) shutdown() {
	w.ending = true
	w.trace.note(w, "the end")
	for _, p := range w.procs {
		if p.local {
			w.retireLocal(p)
		}
	}
	for _, id := range w.m.Sessions() {
		how := wire.OpLost
		if w.chance(0.5) {
			how = wire.OpGoodbye
		}
		w.control(id, wire.Request{Op: how})
	}
	w.run()
	w.audit.end()
}

// retireLocal withdraws the calls of the process that holds the machine, and removes its ranks.
func (w *world) retireLocal(p *proc) {
	for _, id := range slices.Sorted(maps.Keys(p.session.calls)) {
		w.control(core.Local, wire.Request{Op: wire.OpCancel, ID: id})
	}
	gs := slices.SortedFunc(maps.Values(w.audit.groups), func(a, b *group) int { return cmp.Compare(a.gen, b.gen) })
	for _, g := range gs {
		for rank, s := range g.members {
			if s.session == core.Local && s.gone == wire.CodeOK {
				p.lastID++
				w.control(core.Local, wire.Request{Op: wire.OpLeave, ID: p.lastID, Group: wire.Contribution{Generation: g.gen, Rank: rank}})
			}
		}
	}
}
