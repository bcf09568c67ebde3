package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// The store's end of a relay's connection: a trunk, which is a connection with a session of its own, and has branches. A branch is what a
// connection of its own would be to its session: it may be replaced by another one, which may be a branch of another relay, or no branch.

// What a welcome says of relays, as the third of its Nums.
const (
	cameByRelay = 1 // it has come through one
	takesRelays = 2 // the peer may be one
)

// trunk is what a connection has that is a relay's. The Memory's mu protects it.
type trunk struct {
	branches map[uint32]*branch
	replaced []link // by connections of this relay's branches: to be closed

	// Of what is being carried out:
	op     wire.Op // OpRelay, OpVotes; 0 is of the connection itself
	branch *branch // nil is the connection itself
	calls  []wire.RelayCall
	cast   wire.Contribution
	votes  []wire.Vote
	fault  error // what is wrong with the frame of a branch

	// Answers to votes of one frame that are the same, and follow each other: for whom, the answer, and room for the next one.
	alike        []wire.RelayCall
	answer, next []byte
}

// branch is a session's way through a relay: a link.
type branch struct {
	trunk   *conn
	number  uint32
	session uint64
	who     string
	rights  rights        // beside those of the relay
	timeout time.Duration // for liveness, as its hello says; 0 is the server's

	heard bool // the Memory's mu protects these: something came since the server last looked
	live  liveness
}

// quiet implements link. What a relay has not heard of a branch, its trunk has not either. Called with the Memory's mu.
func (b *branch) quiet() time.Duration { return max(b.live.silence(), b.trunk.quiet()) }

// nextOfBranches parses a frame of a relay's. What is wrong in a frame of a branch is that branch's alone.
func (c *conn) nextOfBranches(h wire.Header, body []byte, owned bool) (err error) {
	if c.memory == nil || c.session.Load() == 0 {
		return fmt.Errorf("%s: %w", h.Op, wire.ErrUnknownOp)
	}
	t := c.trunk
	if t == nil {
		t = &trunk{branches: map[uint32]*branch{}}
		c.trunk = t
		c.in.limit = wire.MaxBody + wire.RelayOverhead
	}
	t.op = h.Op
	if h.Op == wire.OpVotes {
		if !owned { // the payloads are to be kept
			body = bytes.Clone(body)
		}
		t.votes, err = wire.ParseVotes(h, body, &t.cast, t.votes)
		return err
	}
	var of wire.Header
	if t.calls, of, body, err = wire.ParseRelay(h, body, t.calls, wire.MaxBody); err != nil {
		return err
	}
	of.ID = t.calls[0].ID
	t.fault = c.req.Parse(of, body)
	c.ownValue(owned)
	return nil
}

// stepBranches carries out what a relay has sent.
func (c *conn) stepBranches(now core.Time) (full bool, err error) {
	t := c.trunk
	defer func() { t.branch = nil }()
	switch {
	case t.op == wire.OpVotes:
		return c.stepVotes(now), nil
	case t.fault != nil:
		if b := t.branches[t.calls[0].Conn]; b != nil {
			if id := t.calls[0].ID; id != 0 {
				c.out.Append(func(to []byte) []byte {
					return wire.AppendRelayReply(to, b.number, wire.OpGoodbye, id, refusedFrame(t.fault))
				})
			}
			c.dropBranch(now, b, t.fault)
		}
		return false, nil
	case c.req.Op == wire.OpHello:
		return false, c.openBranch(t.calls[0].Conn)
	}
	for _, call := range t.calls {
		b := t.branches[call.Conn]
		if b == nil {
			continue // it has ended, which its relay does not know yet
		}
		b.heard = true
		switch c.req.Op {
		case wire.OpProbe:
		case wire.OpGoodbye:
			c.endBranch(now, b, &wire.Request{Op: wire.OpGoodbye})
			b.sayEnd()
		case wire.OpLost:
			c.endBranch(now, b, &wire.Request{Op: wire.OpLost, TTL: c.grace()})
		default:
			c.req.ID = call.ID
			full = c.carryBranch(now, b) || full
		}
	}
	return full, nil
}

// carryBranch carries out c.req, which is of b.
func (c *conn) carryBranch(now core.Time, b *branch) (full bool) {
	if !c.memory.attached(b.session, b) { // its session has gone on without it
		return false
	}
	c.trunk.branch = b
	return c.carry(now, b.session)
}

func (c *conn) stepVotes(now core.Time) (full bool) {
	t := c.trunk
	for i := range t.votes {
		v := &t.votes[i]
		b := t.branches[v.Conn]
		if b == nil {
			continue
		}
		b.heard = true
		c.req = wire.Request{Op: wire.OpCollect, ID: v.ID, Timeout: v.Timeout, Value: v.Value, Group: t.cast}
		c.req.Group.Rank, c.req.Group.Want = v.Rank, v.Want
		full = c.carryBranch(now, b) || full
	}
	return c.replyAlike() > unreadPause || full
}

// replyToVote answers a vote whose record is decided, as of those who read what a root has said, together with others that get the same.
func (c *conn) replyToVote(op wire.Op, id uint64, rep *wire.Reply) (waiting int) {
	t := c.trunk
	t.next = wire.AppendReply(t.next[:0], op, id, rep)
	if len(t.alike) > 0 && !sameAnswer(t.next, t.answer) {
		waiting = c.replyAlike()
	}
	if len(t.alike) == 0 {
		t.answer, t.next = t.next, t.answer
	}
	t.alike = append(t.alike, wire.RelayCall{Conn: t.branch.number, ID: id})
	return waiting
}

// sameAnswer reports whether frames differ in their IDs alone, which end their headers.
func sameAnswer(a, b []byte) bool {
	const id = wire.HeaderLen - 8
	return bytes.Equal(a[:id], b[:id]) && bytes.Equal(a[wire.HeaderLen:], b[wire.HeaderLen:])
}

// replyAlike gives the answers to votes that have not been given yet.
func (c *conn) replyAlike() (waiting int) {
	t := c.trunk
	if len(t.alike) == 0 {
		return 0
	}
	waiting = c.queue(func(b []byte) []byte {
		return append(wire.AppendRelay(b, len(t.answer)-wire.HeaderLen, t.alike...), t.answer...)
	})
	t.alike = t.alike[:0]
	if cap(t.answer)+cap(t.next) > largeVote {
		t.answer, t.next = nil, nil
	}
	return waiting
}

// openBranch is the hello of a branch: it opens a session, or takes one up again. Called with the Memory's mu.
func (c *conn) openBranch(number uint32) error {
	t := c.trunk
	if t.branches[number] != nil || len(t.calls) > 1 {
		return fmt.Errorf("%w: branch %d is opened twice", ErrProtocol, number)
	}
	m := c.memory
	b := &branch{trunk: c, number: number, who: strings.Clone(c.req.Key), timeout: c.req.Timeout, heard: true}
	t.branch = b
	var err error
	if b.rights, err = parseRights(c.req.Old); err != nil {
		return err
	}
	if why := c.server.admitBranch(c); why != "" {
		c.reply(wire.OpHello, 0, &wire.Reply{Code: wire.CodeFull, Detail: why})
		return nil
	}
	var welcome wire.Reply
	id := c.req.ID
	m.apply(core.Local, &c.req, &welcome)
	b.session = uint64(welcome.N)
	t.branches[number] = b
	if before := m.links[b.session]; before != nil {
		t.replaced = append(t.replaced, before)
	}
	m.links[b.session] = b
	welcome.Nums = append(welcome.Nums[:1], int64(c.limits.Grace), cameByRelay)
	c.reply(wire.OpHello, id, &welcome)
	return nil
}

// endBranch is the end of b's way. Called with the Memory's mu.
func (c *conn) endBranch(now core.Time, b *branch, how *wire.Request) {
	delete(c.trunk.branches, b.number)
	c.server.forgetBranches(c, 1)
	c.memory.part(now, b.session, b, how)
}

// dropBranch ends a branch on which something came that makes no sense, as it would end a connection.
func (c *conn) dropBranch(now core.Time, b *branch, why error) {
	if b != nil {
		c.server.log().Warn("connection ended", "peer", c.peer, "who", clip(b.who), "branch", b.number, "err", why)
		c.endBranch(now, b, &wire.Request{Op: wire.OpLost, TTL: c.grace()})
		b.sayEnd()
	}
}

// detachBranches lets go of the sessions of all branches of c, whose connection is over: they may come back by other ways. Whatever ends them
// if they do not, they end together.
func (m *Memory) detachBranches(c *conn, err error) {
	m.mu.Lock()
	t := c.trunk
	if t == nil || m.closed {
		m.mu.Unlock()
		return
	}
	lost := wire.Request{Op: wire.OpLost, TTL: c.grace(), Value: []byte(c.whyCut(err))}
	now := m.now()
	for _, n := range slices.Sorted(maps.Keys(t.branches)) {
		b := t.branches[n]
		m.part(now, b.session, b, &lost)
	}
	c.server.forgetBranches(c, len(t.branches))
	clear(t.branches)
	m.release()
}

// whyCut is what is told of ranks that are lost because their relay is.
func (c *conn) whyCut(err error) string {
	what := "was cut off"
	switch {
	case c.gaveUp:
		what = "was silent for too long"
	case errors.Is(err, errDone), errors.Is(err, net.ErrClosed):
		what = "has ended"
	}
	return fmt.Sprintf("their relay (%s, %s) %s", strings.TrimPrefix(clip(c.hello.Key), relayName), c.peer, what)
}

// weight is how many requests the frame was that has been carried out.
func (t *trunk) weight() int {
	if t == nil || t.op != wire.OpVotes {
		return 1
	}
	return max(1, len(t.votes))
}

// closeReplaced closes the ways that sessions had before. Called without the Memory's mu, by who reads.
func (t *trunk) closeReplaced() {
	if t == nil {
		return
	}
	for _, l := range t.replaced {
		l.close()
	}
	t.replaced = t.replaced[:0]
}

// encode appends an answer to a request of b; without b it is of a connection.
func (b *branch) encode(to []byte, op wire.Op, id uint64, rep *wire.Reply) []byte {
	if b == nil {
		return wire.AppendReply(to, op, id, rep)
	}
	return wire.AppendRelayReply(to, b.number, op, id, rep)
}

// deliver implements link; see fan, which does it for many.
func (b *branch) deliver(e core.Effect, pos uint64, encode *encoder) {
	b.trunk.fan([]letter{{b, e}}, pos, encode)
}

// flush implements link.
func (b *branch) flush() { b.trunk.out.Flush() }

// close implements link: the relay is told that the connection is over.
func (b *branch) close() {
	m := b.trunk.memory
	m.mu.Lock()
	t := b.trunk.trunk
	here := t.branches[b.number] == b
	if here {
		delete(t.branches, b.number)
		b.trunk.server.forgetBranches(b.trunk, 1)
	}
	m.mu.Unlock()
	if here {
		b.sayEnd()
		b.flush()
	}
}

// sayEnd tells the relay that the branch has ended.
func (b *branch) sayEnd() {
	b.trunk.out.Append(func(to []byte) []byte {
		return wire.AppendRelayReply(to, b.number, wire.OpLost, 0, new(wire.Reply))
	})
}

// fan gives the answers of letters, which are all for branches of c: those that are alike, and follow each other, as one frame.
func (c *conn) fan(letters []letter, pos uint64, encode *encoder) {
	for len(letters) > 0 {
		first := letters[0].effect
		n := 1
		for n < len(letters) && letters[n].effect.Reply == first.Reply && letters[n].effect.Op == first.Op {
			n++
		}
		calls := make([]wire.RelayCall, n)
		for i, l := range letters[:n] {
			calls[i] = wire.RelayCall{Conn: l.to.(*branch).number, ID: l.effect.ID}
		}
		if alone(first.Op) {
			first.Reply = c.fitting(first.Reply)
		}
		head, body := encode.frameOf(first)
		outer := append(wire.AppendRelay(nil, len(body.Bytes), calls...), head...)
		if alone(first.Op) {
			c.out.AppendAt(pos, func(b []byte) []byte { return append(append(b, outer...), body.Bytes...) })
		} else {
			c.out.AppendShared(pos, outer, body)
		}
		letters = letters[n:]
	}
}

// alone reports whether an answer to op is one peer's alone, and counts against what may wait for it.
func alone(op wire.Op) bool {
	switch op {
	case wire.OpWait, wire.OpWatch, wire.OpRecv:
		return true
	}
	return false
}

// fanOut gives those of letters that go through relays, and returns the others.
func fanOut(letters []letter, pos uint64) (others []letter) {
	isBranch := func(l letter) bool { _, ok := l.to.(*branch); return ok }
	first := slices.IndexFunc(letters, isBranch)
	if first < 0 {
		return letters
	}
	others = slices.Clone(letters[:first])
	fans := map[*conn][]letter{}
	for _, l := range letters[first:] {
		if b, ok := l.to.(*branch); ok {
			fans[b.trunk] = append(fans[b.trunk], l)
		} else {
			others = append(others, l)
		}
	}
	var e encoder
	for c, ls := range fans {
		c.fan(ls, pos, &e)
		c.out.Flush()
	}
	return others
}

// admitBranch counts a branch as the connection that it stands for, and says why there is no room for it.
func (s *Server) admitBranch(c *conn) (why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.conns)+s.branches >= c.limits.Conns:
		return fmt.Sprintf("the limit is %d connections", c.limits.Conns)
	case c.addr.IsValid() && s.perAddr[c.addr] >= c.limits.PerAddr:
		return fmt.Sprintf("the limit is %d connections from one address", c.limits.PerAddr)
	}
	s.branches++
	s.perAddr[c.addr]++
	c.out.AddLimit(c.limits.InFlight)
	return ""
}

// forgetBranches takes n branches of c out of what is counted.
func (s *Server) forgetBranches(c *conn, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.branches -= n
	if s.perAddr[c.addr] -= n; s.perAddr[c.addr] == 0 {
		delete(s.perAddr, c.addr)
	}
	c.out.AddLimit(-n * c.limits.InFlight)
}
