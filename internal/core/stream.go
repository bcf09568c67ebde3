package core

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// stream is one use of a tag between two ranks: the messages from src to dst, at positions from 1.
// It is a queue with acknowledgments: a message is kept until its reader acknowledges it, or asks
// for the next one, so a receive that is sent again after a reconnect gets the same message.
// Delivery is in order and exactly once.
//
// A stream begins with the first call of one of its ranks. It is freed when the ranks that have
// used it have closed it and no message is left. As with a channel, a rank that has closed it uses
// its successor (next).
type stream struct {
	of        *streams
	payer     uint64 // the session that is charged for it
	src, dst  int
	next      *stream
	source    StreamUse
	reading   StreamUse
	first     uint64 // position of queue[0]
	delivered uint64 // the last position that the reader was given
	queue     []message
	bytes     int
	senders   []*sender // that wait for space
	reader    *reader
	timer     timer // armed for the first message in queue that can expire
}

// StreamUse is what one of the two ranks has done with a stream.
type StreamUse struct{ Used, Closed bool }

type message struct {
	payload []byte
	typ     string
	expires Time // 0 is never
	expired bool
}

// sender is a call that waits until a message of some bytes fits.
type sender struct {
	waiter
	stream *stream
	bytes  int // of its message
}

// reader is a receive that waits for the message at pos.
type reader struct {
	waiter
	stream *stream
	pos    uint64
}

// peer validates the other rank of a send or a receive, c.Root. If it is no rank, the error is in
// rep.
func peer(g *group, c *wire.Contribution, rep *wire.Reply) bool {
	if c.Root < 0 || c.Root >= len(g.members) {
		refuse(rep, wire.CodeInvalid, fmt.Sprintf("rank %d of %d", c.Root, len(g.members)))
		return false
	}
	return true
}

// absence returns the answer to a call that needs rank, if that has left or failed, or g is
// revoked; otherwise nil.
func (g *group) absence(rank int) *wire.Reply {
	switch g.members[rank].gone {
	case wire.CodeLost:
		return failureReply(&wire.Failure{Code: wire.CodeLost, By: -1, Lost: []int{rank}, Reason: g.members[rank].label})
	case wire.CodeLeft:
		return failureReply(&wire.Failure{Code: wire.CodeLeft, By: -1, Left: []int{rank}})
	}
	return g.revoked
}

// outbound returns the stream that a send or a sendReady is about, or nil if rep has its answer.
func (m *Machine) outbound(t Ticket, c *wire.Contribution, rep *wire.Reply) *stream {
	g, s := m.memberOf(t, c, rep)
	if g == nil || !peer(g, c, rep) {
		return nil
	}
	s.noteCall(m, "send", 0)
	if no := g.absence(c.Root); no != nil {
		*rep = *no
		return nil
	}
	st := m.openStream(g, t.Session, c, c.Rank, c.Root, rep)
	if st == nil {
		return nil
	}
	st.source.Used = true
	if no := st.absence(c.Root); no != nil {
		*rep = *no
		return nil
	}
	return st
}

// send appends a message to a stream. It does not wait: a full stream is CodeWouldBlock, and the
// client waits by sendReady before it sends again. So a send has a number and takes effect once.
func (m *Machine) send(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	st := m.outbound(t, c, rep)
	if st == nil {
		return true
	}
	if st.full(m, len(req.Value)) {
		rep.Code = wire.CodeWouldBlock
		return true
	}
	rep.N = int64(st.put(m, message{payload: req.Value, typ: m.keep(c.Type)}, req.TTL))
	return true
}

// sendReady waits until a send of req.Length bytes can succeed, or can never succeed again.
func (m *Machine) sendReady(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	st := m.outbound(t, &req.Group, rep)
	if st == nil {
		return true
	}
	n := int(min(max(req.Length, 0), wire.MaxValue))
	if !st.full(m, n) {
		return true
	}
	w := &sender{stream: st, bytes: n}
	m.park(&w.waiter, t, req, w)
	st.senders = append(st.senders, w)
	return false
}

// full reports whether a message of n bytes must wait. An empty stream takes a message of any size.
func (st *stream) full(m *Machine, n int) bool {
	return len(st.queue) >= m.bounds.streamMessages || st.bytes > 0 && st.bytes+n > m.bounds.streamBytes
}

// put appends msg, hands it to a reader that waits for it, and returns its position.
func (st *stream) put(m *Machine, msg message, ttl Time) uint64 {
	pos := st.first + uint64(len(st.queue))
	if ttl > 0 {
		msg.expires = m.after(ttl)
	}
	st.queue = append(st.queue, msg)
	m.account.charge(st.of.g.members[st.src].session, msg.cost())
	st.bytes += len(msg.payload)
	if r := st.reader; r != nil && r.pos == pos {
		st.reader = nil
		rep := new(wire.Reply)
		st.read(pos, rep)
		m.answer(&r.waiter, rep)
	}
	st.rearm(m)
	return pos
}

// recv answers the message at position c.Seq, and acknowledges those before it. Messages that were
// sent before their sender left or failed are still delivered.
func (m *Machine) recv(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, s := m.memberOf(t, c, rep)
	if g == nil || !peer(g, c, rep) {
		return true
	}
	s.noteCall(m, "recv", 0)
	st := m.openStream(g, t.Session, c, c.Root, c.Rank, rep)
	if st == nil {
		return true
	}
	st.reading.Used = true
	if c.Seq < st.first {
		return refuse(rep, wire.CodeStale, fmt.Sprintf("message %d has been acknowledged", c.Seq))
	}
	if c.Seq > st.first+uint64(len(st.queue)) {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("message %d is not the next one", c.Seq))
	}
	st.acknowledge(m, c.Seq-1)
	if st.read(c.Seq, rep) {
		return true
	}
	if no := st.absence(c.Root); no != nil {
		*rep = *no
		return true
	}
	if st.reader != nil {
		return refuse(rep, wire.CodeConflict, "another call of this rank waits for the same message")
	}
	r := &reader{stream: st, pos: c.Seq}
	m.park(&r.waiter, t, req, r)
	st.reader = r
	return false
}

// read puts message pos into rep. It reports false if it has not been sent yet.
func (st *stream) read(pos uint64, rep *wire.Reply) bool {
	i := int(pos - st.first)
	if i >= len(st.queue) {
		return false
	}
	msg := &st.queue[i]
	st.delivered = max(st.delivered, pos)
	if msg.expired {
		return refuse(rep, wire.CodeExpired, fmt.Sprintf("message %d from rank %d", pos, st.src))
	}
	rep.Value, rep.Type = msg.payload, msg.typ
	return true
}

// acknowledge frees the messages up to pos, and answers the senders that waited for the space.
func (st *stream) acknowledge(m *Machine, pos uint64) {
	for st.first <= pos && len(st.queue) > 0 {
		st.bytes -= len(st.queue[0].payload)
		m.account.release(st.of.g.members[st.src].session, st.queue[0].cost())
		st.queue[0] = message{}
		st.queue = st.queue[1:]
		st.first++
	}
	st.unblockSenders(m)
	st.rearm(m)
}

// ack acknowledges the messages up to c.Seq before their reader asks for the next one: large
// messages are freed early. A position that was not delivered yet is refused.
func (m *Machine) ack(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, _ := m.memberOf(t, c, rep)
	if g == nil || !peer(g, c, rep) {
		return true
	}
	st := g.stream(c, c.Root, c.Rank)
	if st == nil || c.Seq > st.delivered {
		m.noop = true
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("message %d has not been received", c.Seq))
	}
	st.acknowledge(m, c.Seq)
	return true
}

// unblockSenders answers all senders whose message fits now. It does not reserve the space: a
// sender may have failed meanwhile. A sender that finds the stream full again waits again.
func (st *stream) unblockSenders(m *Machine) {
	st.senders = slices.DeleteFunc(st.senders, func(w *sender) bool {
		if st.full(m, w.bytes) {
			return false
		}
		m.answer(&w.waiter, &wire.Reply{})
		return true
	})
}

func (st *stream) timerState() *timer { return &st.timer }

// due expires messages. Their payloads are freed, their positions stay: the reader gets CodeExpired
// for each.
func (st *stream) due(m *Machine) {
	for i := range st.queue {
		msg := &st.queue[i]
		if msg.expires == 0 || msg.expired || msg.expires > m.now {
			continue
		}
		st.bytes -= len(msg.payload)
		m.account.release(st.of.g.members[st.src].session, rounded(len(msg.payload)))
		msg.payload, msg.expired = nil, true
		if st.first+uint64(i) > st.delivered {
			st.of.g.members[st.src].expired++
		}
	}
	st.unblockSenders(m)
	st.rearm(m)
}

// rearm arms the timer for the first message that can expire. A later message that expires sooner
// expires with it: senders give all of their messages the same time.
func (st *stream) rearm(m *Machine) {
	for i := range st.queue {
		if msg := &st.queue[i]; msg.expires > 0 && !msg.expired {
			m.arm(st, msg.expires)
			return
		}
	}
	m.disarm(st)
}

// expire answers how many messages of a rank have expired since it last asked.
func (m *Machine) expire(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	if g, s := m.memberOf(t, &req.Group, rep); g != nil {
		rep.N = int64(s.expired)
		s.expired = 0
	}
	return true
}

func (st *stream) refuseSenders(m *Machine, rep *wire.Reply) {
	for _, w := range st.senders {
		m.answer(&w.waiter, rep)
	}
	st.senders = nil
}

func (r *reader) drop(m *Machine, w *waiter, why wire.Code) {
	r.stream.reader = nil
	if sessionEnded(why) {
		m.unregister(w)
		return
	}
	m.answer(w, r.stream.overdue(m, w, r.stream.src, why))
}

func (r *reader) doing(*waiter) (*group, string) {
	return r.stream.of.g, fmt.Sprintf("recv from rank %d", r.stream.src)
}

func (s *sender) drop(m *Machine, w *waiter, why wire.Code) {
	s.stream.senders = slices.DeleteFunc(s.stream.senders, func(x *sender) bool { return x == s })
	if sessionEnded(why) {
		m.unregister(w)
		return
	}
	m.answer(w, s.stream.overdue(m, w, s.stream.dst, why))
}

func (s *sender) doing(*waiter) (*group, string) {
	return s.stream.of.g, fmt.Sprintf("send to rank %d", s.stream.dst)
}

// overdue returns the answer to a send or a receive whose wait for rank has ended without success.
func (st *stream) overdue(m *Machine, w *waiter, rank int, why wire.Code) *wire.Reply {
	v := &wire.Failure{Code: why, By: -1, Missing: []int{rank}, Waited: m.now - w.since}
	v.Doing, v.Reason = m.doing(st.of.g, 0, v.Missing), m.sharedCause(st.of.g, v.Missing)
	if why != wire.CodeClosed {
		verb := map[wire.Op]string{wire.OpRecv: "recv", wire.OpSendReady: "send"}[w.op]
		appendFailure(&st.of.g.failures, m.newPastFailure(st.of.tag, fmt.Sprintf("%s of rank %d", verb, w.rank), 0, v))
	}
	return failureReply(v)
}
