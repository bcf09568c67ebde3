package core_test

import (
	"bytes"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// stream is the messages from one rank to another, as the auditor sees them.
type stream struct {
	g         *group
	src, dst  int
	tag       string
	accepted  []message // position i+1
	acked     uint64
	senders   []*call // that wait for space
	reader    *call
	delivered uint64 // the last position that its reader has received
	source    end
	reading   end
}

// end is what one of a stream's two ranks has done with it.
type end struct{ used, closed bool }

type message struct {
	payload []byte
	typ     string
	expires core.Time
}

// stream returns the first use of a tag from src to dst that rank, one of the two, has not closed.
func (g *group) stream(rank, src, dst int, tag string) *stream {
	for _, st := range g.streamCount {
		if st.src == src && st.dst == dst && st.tag == tag && !st.closedBy(rank) {
			return st
		}
	}
	st := &stream{g: g, src: src, dst: dst, tag: tag}
	g.streamCount = append(g.streamCount, st)
	return st
}

func (st *stream) closedBy(rank int) bool {
	return rank == st.src && st.source.closed || rank == st.dst && st.reading.closed
}

// closes closes rank's end of st, if rank has used it.
func (st *stream) closes(rank int) {
	used := rank == st.src && st.source.used || rank == st.dst && st.reading.used
	if !used || st.closedBy(rank) {
		return
	}
	if rank == st.src {
		st.source.closed = true
	}
	if rank == st.dst {
		st.reading.closed = true
		st.acked = uint64(len(st.accepted))
	}
}

// over reports whether st must be freed.
func (st *stream) over() bool {
	inUse := func(e end, rank int) bool { return e.used && !e.closed && st.g.members[rank].gone == wire.CodeOK }
	unread := st.acked < uint64(len(st.accepted))
	return st.g.members[st.dst].gone != wire.CodeOK || !unread && !inUse(st.source, st.src) && !inUse(st.reading, st.dst)
}

// before counts the streams with st's tag and ranks that exist and began before st.
func (st *stream) before() (n int) {
	for _, x := range st.g.streamCount {
		if x == st {
			break
		}
		if x.src == st.src && x.dst == st.dst && x.tag == st.tag && !x.over() {
			n++
		}
	}
	return n
}

// absence returns the code that refuses a call on st that needs a rank.
func (st *stream) absence(rank int) wire.Code {
	if code := st.g.absence(rank); code != wire.CodeOK || !st.closedBy(rank) {
		return code
	}
	return wire.CodeSkipped
}

// acknowledges handles a reader that has received all messages up to a position.
func (a *audit) acknowledges(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	for _, st := range g.streamCount {
		if st.src == c.Root && st.dst == c.Rank && st.tag == c.Channel && !st.closedBy(c.Rank) {
			if c.Seq <= st.delivered {
				st.acked = max(st.acked, c.Seq)
				a.w.tally["messages acknowledged"]++
				return
			}
			break
		}
	}
	cl.refusal = wire.CodeInvalid
}

// endRank removes a call that waits.
func (st *stream) endRank(cl *call) {
	st.senders = slices.DeleteFunc(st.senders, func(x *call) bool { return x == cl })
	if st.reader == cl {
		st.reader = nil
	}
}

// unread returns the number of messages that are not acknowledged, and their bytes.
func (st *stream) unread(now core.Time) (n, size int) {
	for _, m := range st.accepted[st.acked:] {
		if n++; m.expires == 0 || m.expires > now {
			size += len(m.payload)
		}
	}
	return n, size
}

// outbound finds the stream of a send, or of a call that waits for its space. It reports whether
// the call is not refused.
func (a *audit) outbound(cl *call) bool {
	g := a.memberOf(cl)
	if g == nil {
		return false
	}
	c := &cl.req.Group
	cl.group = g
	if gone := g.absence(c.Root); gone != wire.CodeOK {
		cl.refusal = gone
		return false
	}
	cl.stream = g.stream(c.Rank, c.Rank, c.Root, c.Channel)
	cl.stream.source.used = true
	if cl.stream.closedBy(c.Root) {
		cl.refusal = wire.CodeSkipped
		return false
	}
	return true
}

// sends handles a message that arrives.
func (a *audit) sends(cl *call) {
	if a.outbound(cl) && cl.stream.full(a, len(cl.req.Value)) {
		cl.refusal = wire.CodeWouldBlock
		a.w.tally["blocked senders"]++
	}
}

// asksForSpace handles a sender that waits for space.
func (a *audit) asksForSpace(cl *call, req *wire.Request) {
	if a.outbound(cl) && cl.stream.full(a, int(req.Length)) {
		cl.stream.senders = append(cl.stream.senders, cl)
	}
}

// full reports whether a message of n bytes has to wait. An empty stream accepts a message of any
// size.
func (st *stream) full(a *audit, n int) bool {
	messages, bytes := st.unread(a.now)
	return messages >= a.w.bounds.StreamMessages || bytes > 0 && bytes+n > a.w.bounds.StreamBytes
}

// absence returns the code that refuses a call that needs a rank.
func (g *group) absence(rank int) wire.Code {
	switch s := &g.members[rank]; {
	case s.gone != wire.CodeOK:
		return s.gone
	case g.revocation != nil:
		return g.revocation.code
	}
	return wire.CodeOK
}

// receives handles a call for a position. The call acknowledges all positions before it.
func (a *audit) receives(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	st := g.stream(c.Rank, c.Root, c.Rank, c.Channel)
	st.reading.used = true
	switch {
	case c.Seq <= st.acked:
		cl.refusal = wire.CodeStale
		return
	case c.Seq > uint64(len(st.accepted))+1:
		cl.refusal = wire.CodeInvalid
		return
	}
	st.acked = c.Seq - 1
	cl.stream = st
	if c.Seq <= uint64(len(st.accepted)) {
		return
	}
	if gone := st.absence(c.Root); gone != wire.CodeOK {
		cl.refusal = gone
	} else if st.reader != nil {
		cl.refusal = wire.CodeConflict
	} else {
		st.reader = cl
	}
}

// sent checks the answer to a sender.
func (a *audit) sent(cl *call, rep *wire.Reply) {
	st := cl.stream
	if rep.Code != wire.CodeOK {
		p2WhyNotSent(st, cl, rep)
		return
	}
	m := message{payload: cl.req.Value, typ: cl.req.Group.Type}
	if cl.req.TTL > 0 {
		m.expires = a.now + cl.req.TTL
	}
	st.accepted = append(st.accepted, m)
	p1InOrder(st, cl, rep)
	a.w.tally["messages"]++
}

// spaceAnswer checks the answer to a call that waits for space.
func (a *audit) spaceAnswer(cl *call, rep *wire.Reply) {
	st := cl.stream
	st.endRank(cl)
	switch rep.Code {
	case wire.CodeOK:
		p4RoomThatIsThere(a, st, cl)
	case wire.CodeTimeout, wire.CodeCancelled:
	default:
		p2WhyNotSent(st, cl, rep)
	}
}

// received checks the answer to a reader.
func (a *audit) received(cl *call, rep *wire.Reply) {
	st := cl.stream
	pos := cl.req.Group.Seq
	if st.reader == cl {
		st.reader = nil
	}
	there := pos <= uint64(len(st.accepted))
	switch rep.Code {
	case wire.CodeOK, wire.CodeExpired:
		if !there {
			breaks("P1 messages come in order, once each", "%s: message %d, %d were sent", cl, pos, len(st.accepted))
		}
		st.delivered = max(st.delivered, pos)
		p3WhatWasSent(a, st, cl, rep)
	case wire.CodeTimeout, wire.CodeCancelled:
	default:
		if there {
			breaks("P2 queued messages come before Lost", "%s: %s; %d were sent", cl, say{rep}, len(st.accepted))
		}
		p2WhyNotSent(st, cl, rep)
	}
}

// p1InOrder checks P1: the positions of a stream are dense, in the order in which its sender sent:
// no message is lost, duplicated or overtaken.
func p1InOrder(st *stream, cl *call, rep *wire.Reply) {
	if rep.N != int64(len(st.accepted)) {
		breaks("P1 messages come in order, once each", "%s has position %d, it should have %d", cl, rep.N, len(st.accepted))
	}
}

// p2WhyNotSent checks P2: a call of a stream fails for one of these reasons: a rank is gone, the
// generation is revoked, its own rank has left, or it was called twice. A message that exists is
// delivered first.
func p2WhyNotSent(st *stream, cl *call, rep *wire.Reply) {
	c := &cl.req.Group
	switch {
	case rep.Code == wire.CodeClosed && (st.g.members[c.Rank].gone != wire.CodeOK || st.closedBy(c.Rank)):
	case rep.Code == wire.CodeSkipped && rep.Failure != nil && rep.Failure.By == c.Root && st.closedBy(c.Root):
	case rep.Failure != nil && (st.g.members[c.Root].gone == rep.Code || st.g.revocation != nil && st.g.revocation.code == rep.Code):
	case rep.Code == wire.CodeConflict && cl.req.Op == wire.OpRecv && st.reader != nil:
	default:
		breaks("P2 a message fails for a reason", "%s: %s", cl, say{rep})
	}
}

// p3WhatWasSent checks P3: the message that is delivered at a position is the one that was sent
// there, however often it is asked for, until its time has passed: then, and not earlier, the
// position is Expired.
func p3WhatWasSent(a *audit, st *stream, cl *call, rep *wire.Reply) {
	m := &st.accepted[cl.req.Group.Seq-1]
	expired := m.expires > 0 && m.expires <= a.now
	switch {
	case expired != (rep.Code == wire.CodeExpired):
		breaks("P3 a message expires in its time", "%s: %s at %v, it was to expire at %v", cl, rep.Code, a.now, m.expires)
	case expired:
		a.w.tally["expired messages"]++
	case !bytes.Equal(m.payload, rep.Value) || m.typ != rep.Type:
		breaks("P1 messages come in order, once each", "%s: %q, %q was sent there", cl, rep.Value, m.payload)
	}
}

// p4NoCallWaitsInVain checks P4: a reader whose message exists does not wait, nor does one whose
// sender is gone, nor does a sender when there is space.
func p4NoCallWaitsInVain(a *audit, cl *call) {
	st := cl.stream
	const p = "P4 no call waits in vain"
	if st.absence(cl.req.Group.Root) != wire.CodeOK {
		breaks(p, "%s waits for a rank that is gone, or in a generation that is revoked", cl)
	}
	if cl.req.Op == wire.OpRecv {
		if cl.req.Group.Seq <= uint64(len(st.accepted)) {
			breaks(p, "%s waits, %d were sent", cl, len(st.accepted))
		}
		return
	}
	if !st.full(a, int(cl.req.Length)) {
		breaks(p, "%s waits for room that is there", cl)
	}
}

// p4RoomThatIsThere checks the converse of P4: a sender that is notified of space can send.
func p4RoomThatIsThere(a *audit, st *stream, cl *call) {
	if st.full(a, int(cl.req.Length)) {
		breaks("P4 no call waits in vain", "%s learns of free space, and there is none", cl)
	}
}

// p5StreamBounded checks P5: a stream holds the messages that are not acknowledged, within its
// bounds: beyond those, senders get the answer that there is no space.
func p5StreamBounded(a *audit, g *group, st *stream) {
	n, size := st.unread(a.now)
	if st.over() {
		return
	}
	if have := a.w.m.Queue(g.gen, st.src, st.dst, st.tag, st.before()); have != n {
		breaks("P5 a stream holds what is not acknowledged", "%d messages, there are %d", have, n)
	}
	b := &a.w.bounds
	if n > b.StreamMessages || n > 1 && size > b.StreamBytes {
		breaks("P5 a stream is bounded", "%d messages of %d bytes", n, size)
	}
}
