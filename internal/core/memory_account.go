package core

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// account counts the bytes that sessions make the machine hold beside entries: calls that wait,
// members of groups, channels, records with their votes, streams with their messages, leases, and
// answers that are not acknowledged. (Limits.Bytes bounds entries.) Each is charged to the session
// that caused it when the machine begins to keep it, and released when the machine frees it, which
// may be after the session has ended. recount computes the same sums from the state; tests check
// after every step that both are equal.
//
// Sizes are estimates of heap memory: a constant for each object, and 9/8 of the bytes of variable
// length, as the allocator rounds up.
type account struct {
	total     int64
	bySession map[uint64]int64 // without sessions that hold nothing
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

// Heap bytes of objects, with their places in maps, lists and timers.
const (
	sessionCost  = 1 << 10
	waiterCost   = 640
	keyCost      = 32 // for each key of a call
	leaseCost    = 256
	answerCost   = 320
	memberCost   = 256
	progressCost = 256
	channelCost  = 512
	recordCost   = 640
	voteCost     = 192 // for each rank of a record
	streamCost   = 768
	messageCost  = 128
)

// rounded estimates the heap bytes of n bytes.
func rounded(n int) int { return n + n/8 }

// callCost estimates a waiting call, without what its record keeps.
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

// joinCost is callCost of a join.
func joinCost(label string, member []byte) int {
	return waiterCost + rounded(len(label)) + rounded(len(member))
}

func replyCost(rep *wire.Reply) int { return answerCost + rounded(valueBytes(rep)) }

func (g *group) memberCost(rank int) int {
	n := memberCost + rounded(len(g.members[rank].label)) + rounded(len(g.infos[rank]))
	if g.members[rank].progress != nil {
		n += progressCost
	}
	return n
}

// cost includes the votes of one record, which the channel keeps for its next one.
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

// chargeGroup charges the members of a new group.
func (m *Machine) chargeGroup(g *group) {
	for i := range g.members {
		m.account.charge(g.members[i].session, g.memberCost(i))
	}
}

// releaseGroup releases all that a group holds when it is dropped.
func (m *Machine) releaseGroup(g *group) {
	g.each(m.account.release)
}

// each calls f for all that g holds, except calls that wait.
func (g *group) each(f func(session uint64, bytes int)) {
	for i := range g.members {
		f(g.members[i].session, g.memberCost(i))
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

// recount computes the account from the state.
func (m *Machine) recount() account {
	a := newAccount()
	for id, s := range m.sessions {
		a.charge(id, sessionCost)
		for _, w := range s.waiters {
			a.charge(id, w.cost)
		}
		a.charge(id, s.leases.Len()*leaseCost)
		for i := range s.answers {
			a.charge(id, replyCost(&s.answers[i]))
		}
	}
	for _, g := range m.groups {
		g.each(a.charge)
	}
	return a
}

// Refuses returns why a request must be refused: the machine would have to hold more than
// Limits.Held or Limits.HeldOf. It returns "" if the request may be applied. A request that is sent
// again is not refused: it has been carried out, or waits already.
func (m *Machine) Refuses(sessionID uint64, req *wire.Request) string {
	n := int64(m.mostCost(req))
	if n == 0 {
		return ""
	}
	s := m.sessions[sessionID]
	if s == nil || sessionID == Local || s.waiters[req.ID] != nil || req.Number != 0 && req.Number <= s.lastNumber() {
		return ""
	}
	switch {
	case m.account.bySession[sessionID]+n > m.limits.HeldOf:
		return fmt.Sprintf("the calls, votes, messages and members of this session hold %d bytes, and this needs up to %d; the limit of a session is %d: "+
			"let calls end first, or raise Limits.HeldOf; a message counts until its receiver acknowledges it", m.account.bySession[sessionID], n, m.limits.HeldOf)
	case m.account.total+n > m.limits.Held:
		return fmt.Sprintf("the calls, votes, messages and members of all sessions hold %d bytes, and this needs up to %d; the limit is %d: "+
			"try again later, or raise Limits.Held", m.account.total, n, m.limits.Held)
	}
	return ""
}

// mostCost returns the most that the machine may have to hold for a request; 0 for a request that
// leaves nothing, or frees something.
func (m *Machine) mostCost(req *wire.Request) int {
	switch req.Op {
	case wire.OpWait, wire.OpWatch, wire.OpFollow, wire.OpJoin:
		return callCost(req) + memberCost
	case wire.OpRecv, wire.OpSendReady:
		return callCost(req) + streamCost + rounded(len(req.Group.Channel))
	case wire.OpProgress:
		return progressCost
	case wire.OpGrant:
		return leaseCost + answerCost
	case wire.OpSend:
		return streamCost + messageCost + rounded(len(req.Value)+len(req.Group.Type)+len(req.Group.Channel)) + answerCost
	case wire.OpCollect:
		if req.Group.No != wire.CodeOK { // it decides the record, which frees the calls that wait in it
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

// beginCost returns the cost of the channel of c if c begins it, and 0 otherwise.
func (m *Machine) beginCost(c *wire.Contribution) int {
	g := m.groups[c.Generation]
	if g == nil || c.Rank < 0 || c.Rank >= len(g.members) || g.channel(c.Channel, c.Rank) != nil {
		return 0
	}
	return newChannelCost(c.Channel, len(g.members))
}

// membersBytes bounds the info of all members of a group together: a member may get all of it in
// one answer.
const membersBytes = 64 << 20

// tooLargeMember returns why a group of a size cannot have a member with n bytes of info, or "".
// Each member has an equal share of the limit.
func tooLargeMember(n, size int) string {
	if most := membersBytes / size; n > most {
		return fmt.Sprintf("a member of %d bytes: in a group of %d the limit is %d, since a rank may get all members in one answer", n, size, most)
	}
	return ""
}
