package core

import (
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// session is one caller: a peer over any number of connections, one after the other, or this process.
type session struct {
	name        string
	token       []byte             // whoever knows it may take the session up again
	waiters     map[uint64]*waiter // by call
	memberships []membership
	leases      []*lease // in the order in which they were granted
	reconnect   reconnectTimer
	sharedCause string // it has no connection: what others lost theirs by, too; empty is of its own
	unresumed   bool   // it has not been resumed since a restart, and grace runs since the first one

	// repeats are the calls that waited when the session was last taken up again, and are to come again: true once they are answered.
	resent map[uint64]bool

	// What its numbered requests were answered: those from acked+1 on, so that one that comes again gets its answer again.
	acked   uint64
	answers []wire.Reply
	bytes   int // of values in answers
}

type membership struct {
	g    *group
	rank int
}

// last is the number of the last request that was carried out.
func (s *session) lastNumber() uint64 { return s.acked + uint64(len(s.answers)) }

// acknowledge forgets the answers up to n: they have come.
func (s *session) acknowledge(a *account, id, n uint64) {
	if n <= s.acked {
		return
	}
	k := min(n-s.acked, uint64(len(s.answers)))
	for i := range s.answers[:k] {
		a.release(id, replyCost(&s.answers[i]))
		s.bytes -= valueBytes(&s.answers[i])
	}
	rest := copy(s.answers, s.answers[k:])
	clear(s.answers[rest:])
	s.answers = s.answers[:rest]
	s.acked += k
}

// once carries a numbered request out, unless it has been carried out already: then it has the same answer. Numbers are dense, so
// that one that was lost on its way cannot be overtaken by the next.
func (m *Machine) executeOnce(s *session, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	s.acknowledge(&m.account, t.Session, req.Acked)
	switch n := req.Number; {
	case n <= s.acked:
		return refuse(rep, wire.CodeStale, fmt.Sprintf("the answer to request %d has been acknowledged", n))
	case n <= s.lastNumber():
		*rep = s.answers[n-s.acked-1]
		return true
	case n != s.lastNumber()+1:
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("request %d after %d", n, s.lastNumber()))
	case len(s.answers) >= m.bounds.unacked:
		return refuse(rep, wire.CodeFull, fmt.Sprintf("%d answers are not acknowledged", len(s.answers)))
	case s.bytes > unackedBytes: // no peer knows that before it asks: the number is used, or the next would be a gap
		refuse(rep, wire.CodeFull, fmt.Sprintf("%d bytes of answers are not acknowledged", s.bytes))
	default:
		handlers[req.Op](m, t, req, rep) // what is numbered never waits
	}
	s.answers = append(s.answers, *rep)
	s.bytes += valueBytes(rep)
	m.account.charge(t.Session, replyCost(rep))
	return true
}

// unackedBytes bounds the values in the answers that are kept for one session, but for the last one.
const unackedBytes = 64 << 20

func valueBytes(rep *wire.Reply) int {
	n := len(rep.Value)
	for _, v := range rep.Values {
		n += len(v)
	}
	return n
}

func (m *Machine) skip(Ticket, *wire.Request, *wire.Reply) bool { return true }

// asksAgain reports whether a call that waits has come again after a reconnect. It waits on, or has been answered meanwhile: then the
// answer is on its way already, and the call must not begin anew.
func (s *session) isResent(req *wire.Request) bool {
	if s.waiters[req.ID] == nil && (!s.resent[req.ID] || !logged(req.Op)) {
		return false
	}
	delete(s.resent, req.ID)
	return true
}

// hello opens a session, or takes one up again; if that cannot be, because it is lost or was never here, it opens a new one.
// Whoever drives the machine puts the token of a new one into Old.
func (m *Machine) hello(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	id := req.Resume
	s := m.sessions[id]
	if s == nil || id == Local || subtle.ConstantTimeCompare(s.token, req.Value) != 1 {
		m.lastSession++
		id = m.lastSession
		s = &session{name: strings.Clone(req.Key), token: slices.Clone(req.Old), waiters: map[uint64]*waiter{}}
		s.reconnect.id = id
		m.sessions[id] = s
		m.account.charge(id, sessionCost)
	}
	m.disarm(&s.reconnect)
	s.sharedCause, s.unresumed = "", false
	s.resent = make(map[uint64]bool, len(s.waiters))
	for id, w := range s.waiters {
		if logged(w.op) { // to begin another anew is no harm
			s.resent[id] = false
		}
	}
	rep.N, rep.Value = int64(id), s.token
	return true
}

func (m *Machine) goodbye(t Ticket, _ *wire.Request, _ *wire.Reply) bool {
	m.endSession(t.Session, wire.CodeLeft)
	return true
}

// lost ends a session whose connection has broken, now, or in TTL if it is not taken up again until then. Value is why, if that took the
// connections of others too.
func (m *Machine) lost(t Ticket, req *wire.Request, _ *wire.Reply) bool {
	if s := m.sessions[t.Session]; req.TTL > 0 && t.Session != Local {
		s.sharedCause = string(req.Value)
		m.arm(&s.reconnect, m.after(req.TTL))
		return true
	}
	m.endSession(t.Session, wire.CodeLost)
	return true
}

// grace is how long a session may be without a connection.
type reconnectTimer struct {
	id    uint64
	timer timer
}

func (g *reconnectTimer) timerState() *timer { return &g.timer }

// due ends the session, and those that lost their connections with it and have not come back either: one verdict names all of
// their ranks, and why.
func (g *reconnectTimer) due(m *Machine) {
	why := m.sessions[g.id].sharedCause
	if why == "" {
		m.endSession(g.id, wire.CodeLost)
		return
	}
	var seats []membership
	for _, id := range m.Sessions() {
		s := m.sessions[id]
		if id == g.id || s.sharedCause == why && s.reconnect.timer.pos > 0 && s.reconnect.timer.at <= m.now {
			seats = append(seats, m.removeSession(id, wire.CodeLost)...)
		}
	}
	for len(seats) > 0 {
		first := seats[0].g
		var ranks []int
		seats = slices.DeleteFunc(seats, func(s membership) bool {
			if s.g == first {
				ranks = append(ranks, s.rank)
			}
			return s.g == first
		})
		slices.Sort(ranks)
		m.fence(first, wire.CodeLost, why, ranks...)
	}
}

// end takes a session out, and its ranks have left or are lost.
func (m *Machine) endSession(id uint64, how wire.Code) {
	for _, seat := range m.removeSession(id, how) {
		m.fence(seat.g, how, "", seat.rank)
	}
}

// takeOut takes a session out: nobody is answered any more, and its leases end. Its seats are to be fenced.
func (m *Machine) removeSession(id uint64, how wire.Code) (seats []membership) {
	if id == Local {
		return nil
	}
	s := m.sessions[id]
	m.disarm(&s.reconnect)
	m.dropAll(s, how, func(*waiter) bool { return true })
	delete(m.sessions, id)
	s.acknowledge(&m.account, id, s.lastNumber())
	m.account.release(id, sessionCost)
	if how == wire.CodeLost {
		m.counts.lost++
	}
	for _, l := range s.leases {
		m.endLease(l)
	}
	return s.memberships
}

// Sessions are the ids of all sessions but the local one, in order.
func (m *Machine) Sessions() []uint64 {
	ids := make([]uint64, 0, len(m.sessions))
	for id := range m.sessions {
		if id != Local {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
