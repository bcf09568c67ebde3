package core_test

import (
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// audit sees every request before the machine does, every answer, and a few counts inside. It keeps what the properties need: who
// voted what, who is there, what was promised. It never asks the machine what is right.
type audit struct {
	w     *world
	step  int
	tally tally

	sessions map[uint64]*conn
	waiting  []*call // at the server, in the order in which they came
	groups   map[uint64]*group
	inOrder  []*group
	live     map[rollKey]*group
	rolls    []*roll
	lastGen  uint64
	keys     keys
}

type rollKey struct{ name, run string }

func newAudit(w *world) *audit {
	return &audit{
		w: w, sessions: map[uint64]*conn{}, groups: map[uint64]*group{}, live: map[rollKey]*group{},
		keys: keys{rev: 1, entries: map[string]*keyEntry{}},
	}
}

// group is one generation.
type group struct {
	gen      uint64
	key      rollKey
	seats    []seat
	present  int
	over     *cause // why it is revoked
	all      bool   // and not only records that a lost rank has not voted in
	told     []byte // how the first who heard of that was told
	channels []*channel
	streams  []*stream
	votes    []*wire.Contribution // of all records, for C3
}

type seat struct {
	session uint64
	gone    wire.Code
}

// cause is why a generation is revoked.
type cause struct {
	code wire.Code
	rank int
	step int
}

func (g *group) revoke(a *audit, code wire.Code, rank int) {
	if g.over == nil {
		g.over = &cause{code, rank, a.step}
		a.tally.revoked++
	}
	g.all = g.all || code != wire.CodeLost
}

func (a *audit) connected(c *conn) {
	if a.sessions[c.session] != nil || c.session == core.Local {
		breaks("G1 no number is issued twice", "session %d", c.session)
	}
	a.sessions[c.session] = c
}

// arrives is called before the machine sees a request.
func (a *audit) arrives(cl *call) {
	a.step++
	cl.at, cl.arrived = a.w.now, true
	switch cl.req.Op {
	case wire.OpGoodbye:
		a.ends(cl.conn, wire.CodeLeft)
	case wire.OpLost:
		a.ends(cl.conn, wire.CodeLost)
	case wire.OpCancel:
		a.cancels(cl)
	case wire.OpJoin:
		a.joins(cl)
	case wire.OpLeave:
		a.leaves(cl)
	case wire.OpFollow:
		cl.group = a.seated(cl)
	case wire.OpCollect:
		a.votes(cl)
	case wire.OpSend:
		a.sends(cl)
	case wire.OpRecv:
		a.receives(cl)
	default:
		a.keys.carryOut(cl)
	}
}

// ticks is called before the machine's timer.
func (a *audit) ticks() {
	a.step++
	a.keys.expire(a.w.now)
}

func (a *audit) waits(cl *call) {
	cl.waiting, cl.waited = true, true
	a.waiting = append(a.waiting, cl)
}

// waiter finds the call that an effect answers.
func (a *audit) waiter(e core.Effect) *call {
	i := slices.IndexFunc(a.waiting, func(cl *call) bool { return cl.conn.session == e.Session && cl.req.ID == e.ID })
	a1AnsweredOnce(a, i, e)
	cl := a.waiting[i]
	cl.waiting = false
	a.waiting = slices.Delete(a.waiting, i, i+1)
	return cl
}

// ends is the end of a session: none of its calls is answered any more, its ranks are gone.
func (a *audit) ends(c *conn, how wire.Code) {
	delete(a.sessions, c.session)
	a.waiting = slices.DeleteFunc(a.waiting, func(cl *call) bool {
		if cl.conn != c {
			return false
		}
		cl.waiting = false
		if cl.roll != nil {
			cl.roll.withdraw(a, cl)
		}
		if cl.stream != nil {
			cl.stream.withdraw(cl)
		}
		return true
	})
	for _, g := range slices.Clone(a.inOrder) {
		for rank := range g.seats {
			if g.seats[rank].session == c.session {
				a.fence(g, rank, how)
			}
		}
	}
}

// fence notes that a rank is gone.
func (a *audit) fence(g *group, rank int, how wire.Code) {
	s := &g.seats[rank]
	if s.gone != wire.CodeOK {
		return
	}
	s.gone = how
	if how == wire.CodeLost {
		g.revoke(a, how, rank)
	}
	for _, st := range g.streams {
		if st.dst == rank {
			st.closed = true
		}
	}
	if g.present--; g.present == 0 {
		delete(a.groups, g.gen)
		a.inOrder = slices.DeleteFunc(a.inOrder, func(x *group) bool { return x == g })
		if a.live[g.key] == g {
			delete(a.live, g.key)
		}
	}
}

// cancels is a caller who gives up.
func (a *audit) cancels(cl *call) {
	i := slices.IndexFunc(a.waiting, func(x *call) bool { return x.conn == cl.conn && x.req.ID == cl.req.ID })
	if i < 0 {
		return
	}
	x := a.waiting[i]
	x.cancelled = true
	if r := x.record; r != nil && r.no == nil {
		r.no = &vote{rank: x.vote.rank, c: x.vote.c, kind: cancelled, step: a.step}
	}
}

// seated finds the generation that a call speaks for, if its caller holds the rank that it names. If not it notes how it is
// to be refused.
func (a *audit) seated(cl *call) *group {
	c := &cl.req.Group
	g := a.groups[c.Generation]
	switch {
	case g == nil:
		cl.refusal = wire.CodeStale
	case c.Rank < 0 || c.Rank >= len(g.seats):
		cl.refusal = wire.CodeInvalid
	case g.seats[c.Rank].session != cl.conn.session:
		cl.refusal = wire.CodeDenied
	case g.seats[c.Rank].gone != wire.CodeOK:
		cl.refusal = wire.CodeClosed
	default:
		return g
	}
	return nil
}

// leaves is a rank that goes, or ends its group for all.
func (a *audit) leaves(cl *call) {
	g := a.seated(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	if c.No != wire.CodeOK {
		g.revoke(a, wire.CodeAborted, c.Rank)
		return
	}
	a.fence(g, c.Rank, wire.CodeLeft)
}

// answered is called with every answer, at once or later.
func (a *audit) answered(cl *call, rep *wire.Reply) {
	a2NoEarlyTimeout(a, cl, rep)
	if cl.refusal != wire.CodeOK {
		c7RefusedCounts(cl, rep)
		return
	}
	switch cl.req.Op {
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
	case wire.OpLeave:
		if rep.Code != wire.CodeOK {
			breaks("G6 a rank that is there may leave", "%s: %s", cl, rep.Code)
		}
	default:
		a.keys.answered(cl, rep)
	}
}

// followed is the answer to one who waits for the end of a generation.
func (a *audit) followed(cl *call, rep *wire.Reply) {
	g := cl.group
	if rep.Verdict == nil && g.seats[cl.req.Group.Rank].gone != wire.CodeOK || cl.cancelled {
		return
	}
	g4RevokedForCause(a, g, cl, rep)
}

// delivered is called when a caller has its answer.
func (a *audit) delivered(cl *call, rep *wire.Reply) {
	if cl.record != nil {
		c6BarrierMeans(cl, rep)
	}
}

// settled is called after each step: what must have happened by now has.
func (a *audit) settled() {
	for _, g := range a.inOrder {
		for _, ch := range g.channels {
			a.settleChannel(ch)
		}
		for _, st := range g.streams {
			p5StreamBounded(a, g, st)
		}
	}
	for _, r := range a.rolls {
		g3CompleteWhenAllThere(r)
	}
	for _, cl := range a.waiting {
		l2DeadlineEnds(a, cl)
		l4EverybodyLearns(a, cl)
	}
	if n := a.w.m.Groups(); n != len(a.groups) {
		breaks("G7 a generation ends with its last rank", "the machine has %d, there are %d", n, len(a.groups))
	}
}

// end is called when all sessions have ended.
func (a *audit) end() {
	a.tally.steps = a.step
	n1NothingLeaks(a)
}
