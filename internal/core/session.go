package core

import (
	"container/list"
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// session is one caller: a client over any number of connections, one after the other, or this
// process. It outlives its connections: a client that reconnects within the reconnect timeout
// resumes it, with its memberships, leases and waiting calls. Ranks fail with their session, not
// with their connection.
type session struct {
	name        string             // what the client calls itself, for logs
	token       []byte             // a secret: a client that sends it resumes the session
	waiters     map[uint64]*waiter // by the id of the call
	memberships []membership
	leases      list.List      // of *lease, in the order in which they were granted
	reconnect   reconnectTimer // armed while it has no connection
	sharedCause string         // why other sessions lost their connections too, or ""
	unresumed   bool           // not resumed since a restart of the store; reconnect runs since the first

	// resent has the calls that waited when the session was last resumed, and that the client is
	// going to send again: true once they are answered.
	resent map[uint64]bool

	// Exactly-once: the answers to its numbered requests from acked+1 on, so that a request that is
	// sent again gets its first answer again (Raft dissertation, section 6.3).
	acked   uint64
	answers []wire.Reply
	bytes   int // of values in answers
}

// membership is one member of a session: a rank of a group.
type membership struct {
	g    *group
	rank int
}

// lastNumber returns the number of the last request that was carried out.
func (s *session) lastNumber() uint64 { return s.acked + uint64(len(s.answers)) }

// acknowledge frees the answers up to number n: the client has received them.
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

// executeOnce carries out a numbered request, unless it has been carried out before: then it gives
// the first answer again. So a client that does not know whether its request arrived sends it again
// without risk.
//
// Numbers have no gaps: request n+1 is refused until request n has been carried out. Otherwise a
// request that is resent could take effect after a later one. A number whose request is refused is
// used all the same, so that the next request of a client with several in flight is not a gap; only
// a client that goes beyond unacked, which it can count, gets no number used.
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
	case s.bytes > unackedBytes: // the client cannot foresee it: the number is used, or the next would be a gap
		refuse(rep, wire.CodeFull, fmt.Sprintf("%d bytes of answers are not acknowledged", s.bytes))
	default:
		handlers[req.Op](m, t, req, rep) // numbered requests never wait
	}
	s.answers = append(s.answers, *rep)
	s.bytes += valueBytes(rep)
	m.account.charge(t.Session, replyCost(rep))
	return true
}

// unackedBytes bounds the values in the answers that are kept for one session. The last answer may
// be over it.
const unackedBytes = 64 << 20

func valueBytes(rep *wire.Reply) int {
	n := len(rep.Value)
	for _, v := range rep.Values {
		n += len(v)
	}
	return n
}

// skip uses a number for nothing, in place of a request that the client gave up before it was sent.
func (m *Machine) skip(Ticket, *wire.Request, *wire.Reply) bool { return true }

// isResent reports whether req is a waiting call that the client sends again after a reconnect. It
// waits on; or it has been answered meanwhile, then the answer is on its way, and the call must not
// start again.
func (s *session) isResent(req *wire.Request) bool {
	if s.waiters[req.ID] == nil && (!s.resent[req.ID] || !logged(req.Op)) {
		return false
	}
	delete(s.resent, req.ID)
	return true
}

// hello resumes a session, or opens a new one if that session has ended or does not exist. The
// caller of the machine puts a random token for a new session into Token.
func (m *Machine) hello(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	id := req.Resume
	s := m.sessions[id]
	if s == nil || id == Local || subtle.ConstantTimeCompare(s.token, req.Value) != 1 {
		m.lastSession++
		id = m.lastSession
		s = &session{name: strings.Clone(req.Key), token: slices.Clone(req.Token), waiters: map[uint64]*waiter{}}
		s.reconnect.id = id
		m.sessions[id] = s
		m.account.charge(id, sessionCost)
	}
	m.disarm(&s.reconnect)
	s.sharedCause, s.unresumed = "", false
	s.resent = make(map[uint64]bool, len(s.waiters))
	for id, w := range s.waiters {
		if logged(w.op) { // starting another kind again has no effect
			s.resent[id] = false
		}
	}
	rep.N, rep.Value = int64(id), s.token
	return true
}

// goodbye ends a session: its ranks have left.
func (m *Machine) goodbye(t Ticket, _ *wire.Request, _ *wire.Reply) bool {
	m.endSession(t.Session, wire.CodeLeft)
	return true
}

// lost says that the connection of a session has broken. The session fails at once, or when TTL has
// passed unless it is resumed before. Value is the cause if it broke the connections of other
// sessions too.
func (m *Machine) lost(t Ticket, req *wire.Request, _ *wire.Reply) bool {
	if s := m.sessions[t.Session]; req.TTL > 0 && t.Session != Local {
		s.sharedCause = string(req.Value)
		m.arm(&s.reconnect, m.after(req.TTL))
		return true
	}
	m.endSession(t.Session, wire.CodeLost)
	return true
}

// reconnectTimer ends a session that has been without a connection for the reconnect timeout.
type reconnectTimer struct {
	id    uint64
	timer timer
}

func (g *reconnectTimer) timerState() *timer { return &g.timer }

// due fails the session, and with it the sessions that lost their connections by the same cause and
// have not been resumed in time either. One failure names all of their ranks and the cause: without
// that the failure of a relay would look like that of one rank, and the next generation would still
// have the other ranks, which have failed too.
func (g *reconnectTimer) due(m *Machine) {
	why := m.sessions[g.id].sharedCause
	if why == "" {
		m.endSession(g.id, wire.CodeLost)
		return
	}
	var members []membership
	for _, id := range m.Sessions() {
		s := m.sessions[id]
		if id == g.id || s.sharedCause == why && s.reconnect.timer.pos > 0 && s.reconnect.timer.at <= m.now {
			members = append(members, m.removeSession(id, wire.CodeLost)...)
		}
	}
	for len(members) > 0 {
		first := members[0].g
		var ranks []int
		members = slices.DeleteFunc(members, func(s membership) bool {
			if s.g == first {
				ranks = append(ranks, s.rank)
			}
			return s.g == first
		})
		slices.Sort(ranks)
		m.fence(first, wire.CodeLost, why, ranks...)
	}
}

// endSession removes a session; its ranks have left or failed (how).
func (m *Machine) endSession(id uint64, how wire.Code) {
	for _, member := range m.removeSession(id, how) {
		m.fence(member.g, how, "", member.rank)
	}
}

// removeSession removes a session: its waiting calls get no answer, and its leases end. It returns
// its memberships, which the caller must fence.
func (m *Machine) removeSession(id uint64, how wire.Code) (members []membership) {
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
	m.endLeases(s)
	return s.memberships
}

// Sessions returns the ids of all sessions but Local, in ascending order.
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
