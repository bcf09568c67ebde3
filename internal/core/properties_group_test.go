package core_test

import (
	"bytes"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// roll is a group that comes together, as the auditor sees it.
type roll struct {
	key        rollKey
	size       int
	from       *group        // whose survivors these are
	applicants map[int]*call // by rank
	members    [][]byte      // once it is complete
	olds       []int64
	gen        uint64
	disagreed  bool // on the size
	frozen     bool // it is complete, and this step will tell
}

// joins is a rank that enters a roll.
func (a *audit) joins(cl *call) {
	c := &cl.req.Group
	if g := a.joinedBy(cl); g != nil {
		cl.roll = g.roll
		a.w.tally.rejoined++
		return
	}
	var r *roll
	if c.Generation != 0 {
		g := a.seated(cl)
		if g == nil {
			return
		}
		r = a.roll(g.key, g, len(g.seats))
	} else {
		if c.Rank < 0 || c.Rank >= c.Size {
			cl.refusal = wire.CodeInvalid
			return
		}
		key := rollKey{c.Group, c.Run}
		if g := a.live[key]; g != nil && c.Rank < len(g.seats) && g.seats[c.Rank].gone == wire.CodeOK {
			cl.refusal = wire.CodeConflict
			return
		}
		r = a.roll(key, nil, c.Size)
		if r.size != c.Size {
			cl.refusal, r.disagreed = wire.CodeMismatch, true
			a.close(r)
			return
		}
	}
	if r.applicants[c.Rank] != nil {
		cl.refusal = wire.CodeConflict
		return
	}
	r.applicants[c.Rank] = cl
	cl.roll = r
}

// joinedBy is the group that a call has taken a seat of.
func (a *audit) joinedBy(cl *call) *group {
	for _, g := range a.inOrder {
		for _, s := range g.seats {
			if s.session == cl.session && s.join == cl.req.ID && s.gone == wire.CodeOK {
				return g
			}
		}
	}
	return nil
}

// roll finds the roll that is open, or opens it.
func (a *audit) roll(key rollKey, from *group, size int) *roll {
	for _, r := range a.rolls {
		if r.key == key && r.from == from {
			return r
		}
	}
	r := &roll{key: key, from: from, size: size, applicants: map[int]*call{}}
	a.rolls = append(a.rolls, r)
	return r
}

func (a *audit) close(r *roll) {
	a.rolls = slices.DeleteFunc(a.rolls, func(x *roll) bool { return x == r })
}

// withdraw takes a rank out.
func (r *roll) withdraw(a *audit, cl *call) {
	if r.gen != 0 || r.frozen {
		return
	}
	delete(r.applicants, cl.req.Group.Rank)
	if len(r.applicants) == 0 {
		a.close(r)
	}
}

// freeze notes which survivors are complete because others are lost: if one of them is lost too in the same step, that is after.
func (a *audit) freeze() {
	for _, r := range slices.Clone(a.rolls) {
		if r.from != nil && len(r.applicants) > 0 && r.absent() == nil {
			r.frozen = true
			a.close(r)
			a.retire(r.from)
		}
	}
}

// retire ends the generation of those who have a new one.
func (a *audit) retire(g *group) {
	for rank := range g.seats {
		a.fence(g, rank, wire.CodeLeft)
	}
}

// overdue is the end of a rank's patience.
func (r *roll) overdue(a *audit, cl *call) {
	cl.ends = clock{}
	cl.absent = slices.DeleteFunc(r.absent(), func(rank int) bool { return rank == cl.req.Group.Rank })
	r.withdraw(a, cl)
}

// absent are the ranks that r still needs.
func (r *roll) absent() (ranks []int) {
	for rank := range r.size {
		if r.applicants[rank] == nil && (r.from == nil || r.from.seats[rank].gone == wire.CodeOK) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// joined is the answer to a rank in a roll.
func (a *audit) joined(cl *call, rep *wire.Reply) {
	r := cl.roll
	if rep.Code == wire.CodeOK {
		if r.gen == 0 {
			a.complete(r, rep)
		}
		g2TogetherAtOnce(r, cl, rep)
		return
	}
	r.withdraw(a, cl)
	g5WhyNotJoined(a, r, cl, rep)
}

// complete makes the generation that a roll has become.
func (a *audit) complete(r *roll, rep *wire.Reply) {
	if absent := r.absent(); absent != nil && !r.frozen {
		breaks("G2 a roll is complete when all are there at the same time", "generation %d has been issued without ranks %v", rep.Rev, absent)
	}
	g1GenerationsUnique(a, rep.Rev)
	a.close(r)
	g := &group{gen: rep.Rev, key: r.key, roll: r}
	for rank := range r.size {
		if cl := r.applicants[rank]; cl != nil {
			g.seats = append(g.seats, seat{session: cl.session, join: cl.req.ID})
			r.members = append(r.members, cl.req.Value)
			if r.from != nil {
				r.olds = append(r.olds, int64(rank))
			}
		}
	}
	g.present = len(g.seats)
	r.gen = g.gen
	a.groups[g.gen] = g
	a.inOrder = append(a.inOrder, g)
	a.live[g.key] = g
	a.w.tally.groups++
	if r.from != nil {
		a.w.tally.shrunk++
		a.retire(r.from)
	}
	for _, session := range a.overdue { // since, in the same step
		for rank, s := range g.seats {
			if s.session == session {
				a.fence(g, rank, wire.CodeLost)
			}
		}
	}
}

// G1: generation numbers are never used again, and grow.
func g1GenerationsUnique(a *audit, gen uint64) {
	if gen <= a.lastGen {
		breaks("G1 no number is issued twice", "generation %d after %d", gen, a.lastGen)
	}
	a.lastGen = gen
}

// G2: an open roll is complete only when all are there at the same time; then all hear the same. A shrunk group has dense ranks, in
// the old order.
func g2TogetherAtOnce(r *roll, cl *call, rep *wire.Reply) {
	const p = "G2 a roll is complete when all are there at the same time"
	if r.applicants[cl.req.Group.Rank] != cl || rep.Rev != r.gen {
		breaks(p, "%s is told of generation %d, which is not its roll's", cl, rep.Rev)
	}
	if !slices.EqualFunc(rep.Values, r.members, bytes.Equal) || !slices.Equal(rep.Nums, r.olds) {
		breaks(p, "%s is told of members %q %d, not %q %d", cl, rep.Values, rep.Nums, r.members, r.olds)
	}
}

// G3: a roll in which all are there does not wait; a shrink does not wait for who is gone.
func g3CompleteWhenAllThere(r *roll) {
	if r.gen == 0 && len(r.applicants) > 0 && r.absent() == nil {
		breaks("G3 a roll completes when all are there", "roll %v of %d waits", r.key, r.size)
	}
}

// G4: a generation is revoked by a loss, a mismatch, an abort or an overrun, and by nothing else; all who ask hear of the first of them,
// in the same words. This is C1 for the verbs that come after the end.
func g4RevokedForCause(a *audit, g *group, cl *call, rep *wire.Reply) {
	const p = "G4 a generation is revoked for a cause, the same for all"
	v := rep.Verdict
	if v == nil || g.over == nil {
		breaks(p, "%s: %s", cl, say{rep})
	}
	told := canonical(rep)
	if g.told == nil {
		g.told = told
	}
	right := v.Code == g.over.code && rep.Code == v.Code
	switch g.over.code {
	case wire.CodeLost:
		right = right && slices.Contains(v.Lost, g.over.rank) && (g.over.why == "" || slices.Equal(v.Lost, g.over.ranks) && v.Reason == g.over.why)
	case wire.CodeAborted:
		right = right && v.By == g.over.rank
	case wire.CodeMismatch:
		right = right && len(v.Clash) == 2 && (v.Clash[1].Rank == g.over.rank) && g.hasVote(&v.Clash[0]) && g.hasVote(&v.Clash[1])
	}
	if !right || !bytes.Equal(told, g.told) {
		breaks(p, "%s: told %s; the cause was %+v; others were told %q", cl, say{rep}, *g.over, g.told)
	}
	_ = a
}

// G5: who is not admitted hears why: its deadline passed or it was cancelled (with who is missing), sizes that
// differ, or that it left its old group meanwhile.
func g5WhyNotJoined(a *audit, r *roll, cl *call, rep *wire.Reply) {
	const p = "G5 who is not admitted hears why"
	c := &cl.req.Group
	switch rep.Code {
	case wire.CodeTimeout, wire.CodeCancelled:
		absent := cl.absent
		if rep.Code == wire.CodeCancelled {
			absent = slices.DeleteFunc(r.absent(), func(rank int) bool { return rank == c.Rank })
		}
		if v := rep.Verdict; v == nil || !slices.Equal(v.Missing, absent) {
			breaks(p, "%s: %s; missing are %v", cl, say{rep}, absent)
		}
	case wire.CodeMismatch:
		if !r.disagreed {
			breaks(p, "%s: nobody disagrees", cl)
		}
	case wire.CodeClosed:
		if r.from == nil || r.from.seats[c.Rank].gone == wire.CodeOK {
			breaks(p, "%s: closed", cl)
		}
	default:
		breaks(p, "%s: %s", cl, say{rep})
	}
	_ = a
}

// A1: an answer goes to a session that is there, to a call that waits, once.
func a1AnsweredOnce(a *audit, i int, e core.Effect) {
	const p = "A1 a call is answered once, while its session is there"
	switch {
	case e.Session != core.Local && a.sessions[e.Session] == nil:
		breaks(p, "%s/%d of session %d, which has ended: %s", e.Op, e.ID, e.Session, say{e.Reply})
	case i < 0:
		breaks(p, "%s/%d of session %d does not wait: %s", e.Op, e.ID, e.Session, say{e.Reply})
	case a.waiting[i].req.Op != e.Op:
		breaks(p, "%s is answered as a %s", a.waiting[i], e.Op)
	}
}

// A2: no call that waits on its own is told of a timeout before its deadline. (A record has the earliest of all its voters: C3.)
func a2NoEarlyTimeout(a *audit, cl *call, rep *wire.Reply) {
	if rep.Code != wire.CodeTimeout || cl.req.Op == wire.OpCollect {
		return
	}
	if t := cl.timeout; t == 0 || cl.at+t > a.now {
		breaks("A2 no call times out early", "%s came at %v, it is %v", cl, cl.at, a.now)
	}
}

// N1: when all sessions have ended nothing is left but keys: no generation, roll, record, stream, waiting call or timer.
func n1NothingLeaks(a *audit) {
	h := a.w.m.Holdings()
	if h != (core.Holdings{}) {
		breaks("N1 nothing leaks", "%+v", h)
	}
	if n := len(a.keys.entries); n != a.w.m.Keys() {
		breaks("N1 nothing leaks", "%d keys, there are %d", a.w.m.Keys(), n)
	}
}
