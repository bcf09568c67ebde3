package core

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// account counts the bytes that sessions make the machine hold beside entries, which Limits.Bytes bounds: calls that wait, members of
// groups, channels, records with their votes, streams with their messages, leases, and answers that are not acknowledged. Each is
// charged to the session that made it, where the machine begins to keep it, and released where it is let go, which may be after the
// session has ended. tally adds the same up from what is there: after every step the two are equal.
//
// Sizes are those of the heap, roughly: a constant for each thing, and an eighth more than the bytes of what has a length, as the
// allocator rounds up.
type account struct {
	total     int64
	bySession map[uint64]int64 // by session, without those that hold nothing
}

func newAccount() account { return account{bySession: map[uint64]int64{}} }

func (a *account) charge(session uint64, bytes int) {
	a.total += int64(bytes)
	if n := a.bySession[session] + int64(bytes); n != 0 {
		a.bySession[session] = n
	} else {
		delete(a.bySession, session)
	}
}

func (a *account) release(session uint64, bytes int) { a.charge(session, -bytes) }

// What things take on the heap, with their places in maps, lists and timers.
const (
	sessionCost = 1 << 10
	waiterCost  = 640
	keyCost     = 32 // of each of a call's keys
	leaseCost   = 256
	answerCost  = 320
	memberCost  = 256
	channelCost = 512
	recordCost  = 640
	voteCost    = 192 // of each rank's place in a record
	streamCost  = 768
	messageCost = 128
)

// rounded is what n bytes take.
func rounded(n int) int { return n + n/8 }

// callCost is what a call takes while it waits, without what its record keeps.
func callCost(req *wire.Request) int {
	n := waiterCost + rounded(len(req.Key)) + rounded(len(req.Group.Label))
	for _, k := range req.Keys {
		n += keyCost + rounded(len(k))
	}
	if req.Op == wire.OpJoin {
		n += rounded(len(req.Value))
	}
	return n
}

// joinCost is callCost of a Join.
func joinCost(label string, member []byte) int {
	return waiterCost + rounded(len(label)) + rounded(len(member))
}

func replyCost(rep *wire.Reply) int { return answerCost + rounded(valueBytes(rep)) }

func (s *member) cost() int { return memberCost + rounded(len(s.label)) + rounded(len(s.info)) }

// cost has room for one record's votes, which the channel keeps for its next one.
func (ch *channel) cost() int { return newChannelCost(ch.name, len(ch.floor)) }

func newChannelCost(name string, ranks int) int {
	return channelCost + rounded(len(name)) + ranks*(16+voteCost)
}

func newRecordCost(c *wire.Contribution, ranks int) int {
	return recordCost + ranks*voteCost + rounded(len(c.Verb)) + rounded(len(c.Type)) + rounded(len(c.Label))
}

func (st *stream) cost() int { return streamCost + rounded(len(st.of.tag)) }

func (msg *message) cost() int {
	return messageCost + rounded(len(msg.payload)) + rounded(len(msg.typ))
}

// chargeGroup charges the seats of a group that has come to be.
func (m *Machine) chargeGroup(g *group) {
	for i := range g.members {
		m.account.charge(g.members[i].session, g.members[i].cost())
	}
}

// releaseGroup releases all that a group holds, which goes with it. A fence of its ranks has released the streams to them.
func (m *Machine) releaseGroup(g *group) {
	g.each(m.account.release)
}

// each calls f for all that g holds, but calls that wait.
func (g *group) each(f func(session uint64, bytes int)) {
	for i := range g.members {
		f(g.members[i].session, g.members[i].cost())
	}
	for _, ch := range g.inOrder() {
		f(ch.payer, ch.cost())
		for _, r := range ch.records {
			r.each(f)
		}
	}
	for _, st := range g.streamsInOrder() {
		st.each(f)
	}
}

// each calls f for all that r holds.
func (r *record) each(f func(session uint64, bytes int)) {
	f(r.payer, r.cost)
	r.eachPayload(f)
}

func (r *record) eachPayload(f func(session uint64, bytes int)) {
	for rank := range r.votes {
		if n := len(r.votes[rank].payload); n > 0 {
			f(r.ch.g.members[rank].session, rounded(n))
		}
	}
}

// each calls f for all that st holds.
func (st *stream) each(f func(session uint64, bytes int)) {
	f(st.payer, st.cost())
	for i := range st.queue {
		f(st.of.g.members[st.src].session, st.queue[i].cost())
	}
}

// tally is the account of what is there.
func (m *Machine) recount() account {
	a := newAccount()
	for id, s := range m.sessions {
		a.charge(id, sessionCost)
		for _, w := range s.waiters {
			a.charge(id, w.cost)
		}
		a.charge(id, len(s.leases)*leaseCost)
		for i := range s.answers {
			a.charge(id, replyCost(&s.answers[i]))
		}
	}
	for _, g := range m.groups {
		g.each(a.charge)
	}
	return a
}

// Refuses says why a request must not be carried out now, since the machine would have to hold more than Limits.Held or
// Limits.HeldOf; "" if it may be. A repeated request, which has been carried out or waits, is not refused.
func (m *Machine) Refuses(sessionID uint64, req *wire.Request) string {
	s := m.sessions[sessionID]
	if s == nil || sessionID == Local || s.waiters[req.ID] != nil || req.Number != 0 && req.Number <= s.lastNumber() {
		return ""
	}
	n := int64(m.mostCost(req))
	switch {
	case n == 0:
	case m.account.bySession[sessionID]+n > m.limits.HeldOf:
		return fmt.Sprintf("the calls, votes, messages and members of this session hold %d bytes, and this needs up to %d; the limit of a session is %d: "+
			"let calls end first, or raise Limits.HeldOf; a message counts until its receiver acknowledges it", m.account.bySession[sessionID], n, m.limits.HeldOf)
	case m.account.total+n > m.limits.Held:
		return fmt.Sprintf("the calls, votes, messages and members of all sessions hold %d bytes, and this needs up to %d; the limit is %d: "+
			"try again later, or raise Limits.Held", m.account.total, n, m.limits.Held)
	}
	return ""
}

// mostCost is the most that the machine may have to hold for a request; 0 for what leaves nothing behind, or frees something.
func (m *Machine) mostCost(req *wire.Request) int {
	switch req.Op {
	case wire.OpWait, wire.OpWatch, wire.OpFollow, wire.OpJoin:
		return callCost(req) + memberCost
	case wire.OpRecv, wire.OpSendReady:
		return callCost(req) + streamCost + rounded(len(req.Group.Channel))
	case wire.OpGrant:
		return leaseCost + answerCost
	case wire.OpTake:
		return answerCost
	case wire.OpSend:
		return streamCost + messageCost + rounded(len(req.Value)+len(req.Group.Type)+len(req.Group.Channel)) + answerCost
	case wire.OpCollect:
		if req.Group.No != wire.CodeOK { // it decides, and frees what others wait in
			return 0
		}
		n := callCost(req) + rounded(len(req.Value))
		if g := m.groups[req.Group.Generation]; g != nil {
			n += newRecordCost(&req.Group, len(g.members)) + m.beginCost(&req.Group)
		}
		return n
	}
	return 0
}

// beginCost is what the channel of c takes, if c begins it.
func (m *Machine) beginCost(c *wire.Contribution) int {
	g := m.groups[c.Generation]
	if g == nil || c.Rank < 0 || c.Rank >= len(g.members) || g.channel(c.Channel, c.Rank) != nil {
		return 0
	}
	return newChannelCost(c.Channel, len(g.members))
}

// membersBytes bounds what the members of a group say of themselves, all together: each of them gets all of it in one answer.
const membersBytes = 64 << 20

// tooLargeMember says why a group of a size cannot have a member of n bytes; "" if it can. Each has an equal part, so that the sum fits.
func tooLargeMember(n, size int) string {
	if most := membersBytes / size; n > most {
		return fmt.Sprintf("a member of %d bytes: in a group of %d the limit is %d, since every rank gets all members", n, size, most)
	}
	return ""
}
