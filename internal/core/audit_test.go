package core_test

import (
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// audit observes every request before the machine does, every answer, and a few internal counts. It
// keeps what the properties need: the votes, the present ranks, and the promises. It never asks the
// machine what is right.
type audit struct {
	w    *world
	now  core.Time // the machine's clock
	step int
	turn uint64

	overdue []uint64 // sessions whose time ended in this step, in order
	due     bool     // a session ends because its time is over
	leaving []*call  // calls of such sessions in this step: they may have been answered before

	sessions     map[uint64]*known
	lost         map[uint64]wire.Code // sessions that have ended
	leases       map[uint64]*lease
	waiting      []*call // at the server, in order of arrival
	groups       map[uint64]*group
	inOrder      []*group
	live         map[groupKey]*group
	rendezvouses []*rendezvous
	lastGen      uint64
	lastExcused  map[uint64]core.Time // by session: see excuse
	keys         keys
}

type groupKey struct{ name, run string }

func newAudit(w *world) *audit {
	return &audit{
		w: w, sessions: map[uint64]*known{}, lost: map[uint64]wire.Code{}, leases: map[uint64]*lease{}, groups: map[uint64]*group{}, live: map[groupKey]*group{}, lastExcused: map[uint64]core.Time{},
		keys: keys{rev: 1, entries: map[string]*keyEntry{}, queues: map[string]*queue{}},
	}
}

// group is one generation.
type group struct {
	gen        uint64
	key        groupKey
	members    []auditMember
	present    int
	revocation *cause // why it is revoked
	rendezvous *rendezvous
	// all records are decided, not only those without the vote of a failed rank
	all         bool
	delivered   []byte         // the first report of the revocation that was delivered, encoded
	channels    []*channel     // in the order in which they began
	uses        map[string]int // of each name
	streamCount []*stream
	votes       []*wire.Contribution // of all records, for C3
}

type auditMember struct {
	session uint64
	join    uint64 // the call that took this membership slot
	gone    wire.Code
	// what it has reported; nil: nothing
	progress *progress
}

// cause is the reason of a revocation.
type cause struct {
	code wire.Code
	rank int
	step int

	ranks []int // that failed together, since
	why   string
}

func (g *group) revoke(a *audit, code wire.Code, rank int) {
	if g.revocation == nil {
		g.revocation = &cause{code: code, rank: rank, step: a.step}
		a.w.tally["revoked groups"]++
	}
	g.all = g.all || code != wire.CodeLost
}

// arrives is called before the machine receives a request. It reports whether the request repeats a
// call that waits already.
func (a *audit) arrives(cl *call, session uint64, req *wire.Request) (waiting bool) {
	a.starts()
	// the answer is on its way
	if s := a.sessions[session]; s != nil && req.Op.Waits() && s.repeats[req.ID] {
		delete(s.repeats, req.ID)
		a.w.tally["waits repeated"]++
		return true
	}
	if i := a.find(session, req.ID); i >= 0 && req.Op == a.waiting[i].req.Op && req.Op.Waits() {
		if s := a.sessions[session]; s != nil {
			delete(s.repeats, req.ID)
		}
		a.w.tally["waits repeated"]++
		return true
	}
	cl.audited = audited{session: session, op: req.Op, number: req.Number, at: a.now, timeout: req.Timeout}
	switch {
	case session != core.Local && a.sessions[session] == nil:
		cl.refusal = wire.CodeDenied
		return false
	case req.Number > 0 && !a.counts(cl, req):
		return false
	}
	a.carryOut(cl, req)
	return false
}

func (a *audit) carryOut(cl *call, req *wire.Request) {
	switch req.Op {
	case wire.OpHello:
	case wire.OpGoodbye:
		a.ends(cl.session, wire.CodeLeft)
	case wire.OpLost:
		a.suspects(cl, req)
	case wire.OpCancel:
		a.cancels(cl)
	case wire.OpJoin:
		a.joins(cl)
	case wire.OpLeave:
		a.leaves(cl)
	case wire.OpFollow:
		cl.group = a.memberOf(cl)
	case wire.OpMembers:
		a.asksMembers(cl)
	case wire.OpCollect:
		a.votes(cl)
	case wire.OpProgress:
		a.reports(cl)
	case wire.OpStalled:
		a.stalls(cl)
	case wire.OpSend:
		a.sends(cl)
	case wire.OpSendReady:
		a.asksForSpace(cl, req)
	case wire.OpRecv:
		a.receives(cl)
	case wire.OpGrant, wire.OpKeepAlive, wire.OpRevoke:
		a.carryOutLease(cl)
	case wire.OpCloseChannel:
		a.closes(cl)
	case wire.OpAck:
		a.acknowledges(cl)
	case wire.OpSkip:
		cl.expect = &wire.Reply{}
	default:
		a.keys.carryOut(a, cl)
	}
}

// starts begins a step: all events that are due happen.
func (a *audit) starts() {
	a.step++
	a.w.tally["steps"]++
	a.excuse()
	a.advance()
}

func (a *audit) find(session, id uint64) int {
	return slices.IndexFunc(a.waiting, func(cl *call) bool { return cl.session == session && cl.req.ID == id })
}

func (a *audit) waits(cl *call) {
	cl.waiting, cl.waited = true, true
	if cl.timeout > 0 {
		cl.ends = a.in(cl.timeout)
	}
	a.waiting = append(a.waiting, cl)
}

// waiter finds the call that an effect answers. It returns nil if the session of the call has ended
// in the same step.
func (a *audit) waiter(e core.Effect) *call {
	i := a.find(e.Session, e.ID)
	if i < 0 && slices.ContainsFunc(a.leaving, func(cl *call) bool { return cl.session == e.Session && cl.req.ID == e.ID }) {
		return nil
	}
	a1AnsweredOnce(a, i, e)
	cl := a.waiting[i]
	cl.waiting = false
	if s := a.sessions[e.Session]; s != nil {
		if _, ok := s.repeats[e.ID]; ok {
			s.repeats[e.ID] = true
		}
	}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	return cl
}

// ends ends a session: its calls get no answers from now on, and its ranks are gone.
func (a *audit) ends(session uint64, how wire.Code) {
	a.endLeasesOf(session)
	delete(a.sessions, session)
	a.lost[session] = how
	a.waiting = slices.DeleteFunc(a.waiting, func(cl *call) bool {
		if cl.session != session {
			return false
		}
		cl.waiting = false
		if a.due {
			a.leaving = append(a.leaving, cl)
		}
		if cl.rendezvous != nil {
			cl.rendezvous.withdraw(a, cl)
		}
		if cl.stream != nil {
			cl.stream.endRank(cl)
		}
		return true
	})
	for _, g := range slices.Clone(a.inOrder) {
		for rank := range g.members {
			if g.members[rank].session == session {
				a.fence(g, rank, how)
			}
		}
	}
}

// fence records that a rank is gone.
func (a *audit) fence(g *group, rank int, how wire.Code) {
	s := &g.members[rank]
	if s.gone != wire.CodeOK {
		return
	}
	s.gone = how
	if how == wire.CodeLost {
		g.revoke(a, how, rank)
	}
	if g.present--; g.present == 0 {
		delete(a.groups, g.gen)
		a.inOrder = slices.DeleteFunc(a.inOrder, func(x *group) bool { return x == g })
		if a.live[g.key] == g {
			delete(a.live, g.key)
		}
	}
}

// cancels handles a caller that cancels its call.
func (a *audit) cancels(cl *call) {
	i := a.find(cl.session, cl.req.ID)
	if i < 0 { // what a Join obtained, without an answer that was delivered, is released
		if g, rank := a.joinedBy(cl); g != nil {
			a.w.tally["memberships given back"]++
			a.fence(g, rank, wire.CodeLeft)
		}
		return
	}
	x := a.waiting[i]
	x.cancelled = wire.CodeCancelled
	if cl.req.Group.No == wire.CodeTimeout {
		x.cancelled = wire.CodeTimeout
	}
	if x.rendezvous != nil {
		x.rendezvous.fail(a, x.cancelled, x.req.Group.Rank)
	}
	switch r := x.record; {
	case r == nil:
	case x.cancelled == wire.CodeTimeout:
		r.deadline = a.now
	case r.no == nil:
		r.no = &vote{rank: x.vote.rank, c: x.vote.c, kind: cancelled, step: a.step}
	}
}

// memberOf finds the generation that a call names, if its caller holds the rank that it names.
// Otherwise it records the expected refusal.
func (a *audit) memberOf(cl *call) *group {
	c := &cl.req.Group
	g := a.groups[c.Generation]
	switch {
	// the caller is not to know that g exists
	case g == nil, !slices.ContainsFunc(g.members, func(s auditMember) bool { return s.session == cl.session }):
		cl.refusal = wire.CodeStale
	case c.Rank < 0 || c.Rank >= len(g.members):
		cl.refusal = wire.CodeInvalid
	case g.members[c.Rank].session != cl.session:
		cl.refusal = wire.CodeDenied
	case g.members[c.Rank].gone != wire.CodeOK:
		cl.refusal = wire.CodeClosed
	default:
		return g
	}
	return nil
}

// leaves handles a rank that leaves, or that ends its group for all ranks.
func (a *audit) leaves(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	if c.No != wire.CodeOK {
		code := wire.CodeAborted
		if c.No == wire.CodeMismatch {
			code = c.No
		}
		g.revoke(a, code, c.Rank)
		return
	}
	a.fence(g, c.Rank, wire.CodeLeft)
}

// answered is called with every answer, immediate or delayed.
func (a *audit) answered(cl *call, rep *wire.Reply) {
	a2NoEarlyTimeout(a, cl, rep)
	switch {
	case cl.number > 0 && !a.numbered(cl, rep):
		return
	case cl.refusal != wire.CodeOK:
		c7RefusedCounts(cl, rep)
		return
	}
	switch cl.op {
	case wire.OpHello:
		a.greeted(cl, rep)
	case wire.OpSendReady:
		a.spaceAnswer(cl, rep)
	case wire.OpJoin:
		a.joined(cl, rep)
	case wire.OpCollect:
		a.decided(cl, rep)
	case wire.OpSend:
		a.sent(cl, rep)
	case wire.OpRecv:
		a.received(cl, rep)
	case wire.OpFollow:
		a.followed(cl, rep)
	case wire.OpMembers:
		g8MembersOfTheGroup(cl, rep)
	case wire.OpCloseChannel, wire.OpAck:
		if rep.Code != wire.CodeOK {
			breaks("C9 a channel can be closed, and what was received be acknowledged", "%s: %s", cl, rep.Code)
		}
	case wire.OpProgress:
		if rep.Code != wire.CodeOK {
			breaks("T1 a rank may report", "%s: %s", cl, rep.Code)
		}
	case wire.OpLeave:
		if rep.Code != wire.CodeOK {
			breaks("G6 a rank that is there may leave", "%s: %s", cl, rep.Code)
		}
	default:
		a.keys.answered(a, cl, rep)
	}
}

// followed checks the answer to a call that waits for the end of a generation.
func (a *audit) followed(cl *call, rep *wire.Reply) {
	g := cl.group
	if rep.Failure == nil && g.members[cl.req.Group.Rank].gone != wire.CodeOK || cl.cancelled != wire.CodeOK {
		return
	}
	g4RevokedForCause(g, cl, rep)
}

// settled is called after each step and checks that everything that must have happened has
// happened.
func (a *audit) settled() {
	a.excuse()
	mayStall := 0
	for _, g := range a.inOrder {
		for _, ch := range g.channels {
			a.settleChannel(ch)
			for _, r := range ch.records {
				if !r.done && r.stall > 0 {
					mayStall++
				}
			}
		}
		for _, st := range g.streamCount {
			p5StreamBounded(a, g, st)
		}
		c9FreedWithItsLastUser(a, g)
	}
	if n := a.w.m.Stalls(); n > mayStall {
		breaks("T3 what is decided cannot stall", "%d records may, there are %d", n, mayStall)
	}
	for _, r := range a.rendezvouses {
		g3CompleteWhenAllThere(r)
	}
	for _, cl := range a.waiting {
		l2DeadlineEnds(a, cl)
		l4AllRanksLearn(a, cl)
		c9NoCallOnWhatIsClosed(cl)
	}
	a.settleSessions()
	if n := a.w.m.Groups(); n != len(a.groups) {
		breaks("G7 a generation ends with its last rank", "the machine has %d, there are %d", n, len(a.groups))
	}
	q1StatusIsTrue(a)
	m1AccountIsTrue(a)
}

// end is called when all sessions have ended.
func (a *audit) end() {
	n1NothingLeaks(a)
}
