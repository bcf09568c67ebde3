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
	senders   []*call // that wait for room
	reader    *call
	delivered uint64 // the last position that its reader was given
	source    end
	reading   end
}

// end is what one of its two ranks has done with a stream.
type end struct{ used, closed bool }

type message struct {
	payload []byte
	typ     string
	expires core.Time
}

// stream is the first use of a tag from src to dst that rank, one of the two, has not closed.
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

// closes is rank's end of st, if it has used it.
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

// over reports whether st is to be freed.
func (st *stream) over() bool {
	inUse := func(e end, rank int) bool { return e.used && !e.closed && st.g.members[rank].gone == wire.CodeOK }
	unread := st.acked < uint64(len(st.accepted))
	return st.g.members[st.dst].gone != wire.CodeOK || !unread && !inUse(st.source, st.src) && !inUse(st.reading, st.dst)
}

// before counts the streams of st's tag and ranks that are there and began before it.
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

// absence is how a call on st that needs a rank is refused.
func (st *stream) absence(rank int) wire.Code {
	if code := st.g.absence(rank); code != wire.CodeOK || !st.closedBy(rank) {
		return code
	}
	return wire.CodeSkipped
}

// acknowledges is a reader that has received all up to a position.
func (a *audit) acknowledges(cl *call) {
	g := a.seated(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	for _, st := range g.streamCount {
		if st.src == c.Root && st.dst == c.Rank && st.tag == c.Channel && !st.closedBy(c.Rank) {
			if c.Seq <= st.delivered {
				st.acked = max(st.acked, c.Seq)
				a.w.tally.acked++
				return
			}
			break
		}
	}
	cl.refusal = wire.CodeInvalid
}

// withdraw takes out a call that waits.
func (st *stream) endRank(cl *call) {
	st.senders = slices.DeleteFunc(st.senders, func(x *call) bool { return x == cl })
	if st.reader == cl {
		st.reader = nil
	}
}

// unread are the messages that are not acknowledged, and their bytes.
func (st *stream) unread(now core.Time) (n, size int) {
	for _, m := range st.accepted[st.acked:] {
		if n++; m.expires == 0 || m.expires > now {
			size += len(m.payload)
		}
	}
	return n, size
}

// sends is a message that arrives.
func (a *audit) sends(cl *call) {
	g := a.seated(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	if gone := g.absence(c.Root); gone != wire.CodeOK {
		cl.refusal = gone
		return
	}
	cl.stream = g.stream(c.Rank, c.Rank, c.Root, c.Channel)
	cl.stream.source.used = true
	if cl.stream.closedBy(c.Root) {
		cl.refusal = wire.CodeSkipped
		return
	}
	if cl.stream.full(a, len(cl.req.Value)) {
		cl.refusal = wire.CodeWouldBlock
		a.w.tally.blocked++
	}
}

// asksForRoom is a sender that waits.
func (a *audit) asksForRoom(cl *call, req *wire.Request) {
	g := a.seated(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	if gone := g.absence(c.Root); gone != wire.CodeOK {
		cl.refusal = gone
		return
	}
	cl.stream = g.stream(c.Rank, c.Rank, c.Root, c.Channel)
	cl.stream.source.used = true
	if cl.stream.closedBy(c.Root) {
		cl.refusal = wire.CodeSkipped
		return
	}
	if !cl.stream.full(a, int(req.Delta)) {
		return
	}
	cl.stream.senders = append(cl.stream.senders, cl)
}

// full reports whether a message of n bytes has to wait; alone, any is taken.
func (st *stream) full(a *audit, n int) bool {
	messages, bytes := st.unread(a.now)
	return messages >= a.w.bounds.StreamMessages || bytes > 0 && bytes+n > a.w.bounds.StreamBytes
}

// absence is how a call that needs a rank is refused.
func (g *group) absence(rank int) wire.Code {
	switch s := &g.members[rank]; {
	case s.gone != wire.CodeOK:
		return s.gone
	case g.revocation != nil:
		return g.revocation.code
	}
	return wire.CodeOK
}

// receives is a call for a position. It acknowledges all before it.
func (a *audit) receives(cl *call) {
	g := a.seated(cl)
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

// sent is the answer to a sender.
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
	a.w.tally.messages++
}

// told is the answer to one who waits for room.
func (a *audit) told(cl *call, rep *wire.Reply) {
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

// received is the answer to a reader.
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

// P1: the positions of a stream are dense, in the order in which its sender has sent: none is lost, doubled or overtaken.
func p1InOrder(st *stream, cl *call, rep *wire.Reply) {
	if rep.N != int64(len(st.accepted)) {
		breaks("P1 messages come in order, once each", "%s has position %d, it should have %d", cl, rep.N, len(st.accepted))
	}
}

// P2: a call of a stream fails for a reason: a rank is gone, the generation is revoked, its own rank has left, or it was asked twice.
// A message that is there is given first.
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

// P3: what is given at a position is what was sent there, as often as it is asked for, until its time has passed: then, and not
// earlier, the position is Expired.
func p3WhatWasSent(a *audit, st *stream, cl *call, rep *wire.Reply) {
	m := &st.accepted[cl.req.Group.Seq-1]
	expired := m.expires > 0 && m.expires <= a.now
	switch {
	case expired != (rep.Code == wire.CodeExpired):
		breaks("P3 a message expires in its time", "%s: %s at %v, it was to expire at %v", cl, rep.Code, a.now, m.expires)
	case expired:
		a.w.tally.expired++
	case !bytes.Equal(m.payload, rep.Value) || m.typ != rep.Type:
		breaks("P1 messages come in order, once each", "%s: %q, %q was sent there", cl, rep.Value, m.payload)
	}
}

// P4: a reader whose message is there does not wait, nor does one whose sender is gone, nor does anybody for room that is there.
func p4NobodyWaitsInVain(a *audit, cl *call) {
	st := cl.stream
	const p = "P4 nobody waits in vain"
	if st.absence(cl.req.Group.Root) != wire.CodeOK {
		breaks(p, "%s waits for a rank that is gone, or in a generation that is revoked", cl)
	}
	if cl.req.Op == wire.OpRecv {
		if cl.req.Group.Seq <= uint64(len(st.accepted)) {
			breaks(p, "%s waits, %d were sent", cl, len(st.accepted))
		}
		return
	}
	if !st.full(a, int(cl.req.Delta)) {
		breaks(p, "%s waits for room that is there", cl)
	}
}

// P4, the other way: who is told that there is room can send.
func p4RoomThatIsThere(a *audit, st *stream, cl *call) {
	if st.full(a, int(cl.req.Delta)) {
		breaks("P4 nobody waits in vain", "%s is told of room, and there is none", cl)
	}
}

// P5: a stream holds what is not acknowledged, and no more than its bounds: beyond that senders are told that there is no room.
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
