package core_test

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// known is the auditor's state of a session.
type known struct {
	id    uint64
	token []byte
	grace timer // when it fails; zero while it has a connection
	away  bool  // not resumed since a restart
	// why it has no connection; other sessions may have lost theirs for the same reason
	why         string
	last, acked uint64
	answers     map[uint64][]byte // by number, those beyond acked
	leases      []*lease
	// calls that waited when the session was last resumed; true once they are answered
	repeats map[uint64]bool
}

// lease is a lease that has not ended.
type lease struct {
	id, session uint64
	ttl         core.Time
	ends        timer
	keys        []string // of its entries, in the order in which they were attached
	over        bool
}

// timer is the time of an event. Events at the same time happen in the order in which they were
// scheduled.
type timer struct {
	at   core.Time
	turn uint64
}

func (a *audit) in(d core.Time) timer {
	a.turn++
	return timer{a.now + d, a.turn}
}

func (c timer) before(d timer) bool { return c.at < d.at || c.at == d.at && c.turn < d.turn }

// advance ends, in order of time, the leases, the sessions and the waits for a rendezvous that are
// due.
func (a *audit) advance() {
	a.leaving, a.overdue = nil, nil
	for {
		next := timer{at: a.now + 1}
		var end func()
		for _, l := range a.leases {
			if l.ends.before(next) {
				next, end = l.ends, func() {
					a.w.tally["leases ended by their time"]++
					a.sessionLeases(l.session, func(x *lease) bool { return x == l })
					a.endLease(l)
				}
			}
		}
		for _, s := range a.sessions {
			if s.grace.at > 0 && s.grace.before(next) {
				next, end = s.grace, func() { a.loses(s) }
			}
		}
		for _, cl := range a.waiting {
			if cl.rendezvous != nil && cl.ends.at > 0 && cl.ends.before(next) {
				next, end = cl.ends, func() {
					cl.rendezvous.fail(a, wire.CodeTimeout, -1)
					cl.ends = timer{} // if it has formed or failed, too
				}
			}
		}
		if end == nil {
			return
		}
		a.due = true
		end()
		a.due = false
		a.freeze()
	}
}

// loses ends a session whose reconnect timeout has passed, and all sessions that lost their
// connections for the same reason and whose timeout has passed too.
func (a *audit) loses(first *known) {
	var ids []uint64
	for _, s := range slices.SortedFunc(maps.Values(a.sessions), byID) {
		if s == first || first.why != "" && s.why == first.why && s.grace.at > 0 && s.grace.at <= a.now {
			ids = append(ids, s.id)
		}
	}
	if len(ids) > 1 {
		a.w.tally["losses of several at once"]++
	}
	for _, g := range slices.Clone(a.inOrder) { // one outcome for all of the group's ranks
		var ranks []int
		for rank, s := range g.members {
			if slices.Contains(ids, s.session) && s.gone == wire.CodeOK {
				ranks = append(ranks, rank)
			}
		}
		if first.why != "" && len(ranks) > 0 {
			g.revoke(a, wire.CodeLost, ranks[0])
			if g.revocation.step == a.step && g.revocation.why == "" && g.revocation.rank == ranks[0] {
				g.revocation.ranks, g.revocation.why = ranks, first.why
			}
		}
	}
	for _, id := range ids {
		a.w.tally["lost after their grace"]++
		a.overdue = append(a.overdue, id)
		a.ends(id, wire.CodeLost)
	}
}

// suspects handles the end of a session's connection.
func (a *audit) suspects(cl *call, req *wire.Request) {
	if req.TTL > 0 {
		a.sessions[cl.session].grace, a.sessions[cl.session].why = a.in(req.TTL), string(req.Value)
		return
	}
	a.ends(cl.session, wire.CodeLost)
}

// restarts handles the start of a new server: no session has a connection. A session that has not
// been resumed since the previous restart keeps the rest of its time.
func (a *audit) restarts(grace core.Time) {
	a.excuses()
	for _, s := range slices.SortedFunc(maps.Values(a.sessions), byID) {
		if !s.away {
			s.grace, s.away = a.in(grace), true
		} else {
			a.w.tally["away over two restarts"]++
		}
	}
}

// counts checks the number of a request, and reports whether the request is to be applied.
func (a *audit) counts(cl *call, req *wire.Request) bool {
	s := a.sessions[cl.session]
	for ; s.acked < min(req.Acked, s.last); s.acked++ {
		delete(s.answers, s.acked+1)
	}
	switch n := req.Number; {
	case n <= s.acked:
		cl.refusal = wire.CodeStale
	case n <= s.last:
		cl.repeated = true
		a.w.tally["repeats answered from memory"]++
	case n != s.last+1:
		cl.refusal, cl.number = wire.CodeInvalid, 0
		a.w.tally["gaps refused"]++
	default:
		s.last = n
		return true
	}
	return false
}

// numbered checks the answer to a numbered request. It reports whether the answer is that of this
// request's own application, not a kept one.
func (a *audit) numbered(cl *call, rep *wire.Reply) bool {
	s := a.sessions[cl.session]
	if s == nil {
		return true
	}
	said := wire.AppendReply(nil, wire.OpSkip, 0, rep)
	if cl.repeated {
		s2RepliesAreKept(s, cl, rep, said)
		return false
	}
	if cl.refusal == wire.CodeStale && cl.number <= s.acked {
		breaks("S2 each reply for n is that of its application", "%s has been acknowledged, and comes again", cl)
	}
	s1AppliedOnce(s, cl, rep)
	s.answers[cl.number] = said
	return true
}

// reads reports whether op is a waiting call that changes no state, so that starting it again does
// no harm.
func reads(op wire.Op) bool { return op == wire.OpWait || op == wire.OpWatch || op == wire.OpFollow }

// greeted checks the answer to a hello: the session that was asked for, if it exists and its token
// is right; otherwise a new session.
func (a *audit) greeted(cl *call, rep *wire.Reply) {
	id := uint64(rep.N)
	req := &cl.req
	s := a.sessions[req.Resume]
	if s != nil && bytes.Equal(s.token, req.Value) {
		s6TakenUp(s, cl, rep)
		s.grace, s.why, s.away = timer{}, "", false
		s.repeats = map[uint64]bool{}
		for _, cl := range a.waiting {
			if cl.session == s.id && !reads(cl.req.Op) {
				s.repeats[cl.req.ID] = false
			}
		}
		return
	}
	s6New(a, cl, rep)
	a.sessions[id] = &known{id: id, token: req.Token, answers: map[uint64][]byte{}}
}

// carryOutLease applies a request for a lease to the model, and records the expected answer.
func (a *audit) carryOutLease(cl *call) {
	req := &cl.req
	rep := &wire.Reply{}
	cl.expect = rep
	if req.Op == wire.OpGrant {
		a.keys.lastLease++
		l := &lease{id: a.keys.lastLease, session: cl.session, ttl: req.TTL, ends: a.in(req.TTL)}
		a.leases[l.id] = l
		if s := a.sessions[cl.session]; s != nil {
			s.leases = append(s.leases, l)
		}
		rep.N = int64(l.id)
		a.w.tally["leases"]++
		return
	}
	l, no := a.leaseOf(cl)
	switch {
	case l == nil:
		rep.Code = no
	case req.Op == wire.OpKeepAlive:
		l.ends = a.in(l.ttl)
	default:
		a.w.tally["leases ended by revoke"]++
		a.sessionLeases(cl.session, func(x *lease) bool { return x == l })
		a.endLease(l)
	}
}

func (a *audit) leaseOf(cl *call) (*lease, wire.Code) {
	l := a.leases[cl.req.Lease]
	switch {
	case l == nil:
		return nil, wire.CodeNotFound
	case l.session != cl.session:
		return nil, wire.CodeDenied
	}
	return l, wire.CodeOK
}

// sessionLeases removes leases from the list of their session.
func (a *audit) sessionLeases(session uint64, which func(*lease) bool) {
	if s := a.sessions[session]; s != nil {
		s.leases = slices.DeleteFunc(s.leases, which)
	}
}

// endLease ends a lease: from now on its entries are invisible. The next Tick removes them.
func (a *audit) endLease(l *lease) {
	if l.over {
		breaks("S7 a lease ends once", "lease %d", l.id)
	}
	l.over = true
	delete(a.leases, l.id)
	if len(l.keys) > 0 {
		a.keys.ending = append(a.keys.ending, l)
	}
}

func (a *audit) endLeasesOf(session uint64) {
	if s := a.sessions[session]; s != nil {
		for _, l := range s.leases {
			a.w.tally["leases ended by their session"]++
			a.endLease(l)
		}
	}
}

// settleSessions checks sessions and leases after each step.
func (a *audit) settleSessions() {
	s9NoneTooEarlyNorTooLate(a)
	s7LeasesEnd(a)
	if e := a.w.step; e.session != core.Local {
		s5KeptReplies(a, e.session)
	}
}

// byID orders sessions by their ids.
func byID(a, b *known) int { return cmp.Compare(a.id, b.id) }
