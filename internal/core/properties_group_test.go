package core_test

import (
	"bytes"
	"maps"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// rendezvous is one attempt to form a group, as the auditor sees it.
type rendezvous struct {
	key     groupKey
	size    int
	from    *group        // the group whose survivors form a new one; nil otherwise
	joiners map[int]*call // by rank
	members [][]byte      // set once it is complete
	gen     uint64
	id      int64 // that the first answer had
	frozen  bool  // complete; the answers go out in this step

	failed    wire.Code // why the attempt has failed; OK if it has not
	by        int       // the rank that cancelled
	absent    []int     // at the time of the failure
	delivered []byte    // the first failure that was delivered, encoded
}

// fail ends an attempt for all ranks that take part in it.
func (r *rendezvous) fail(a *audit, why wire.Code, by int) {
	if r.gen != 0 || r.frozen || r.failed != wire.CodeOK {
		return
	}
	r.failed, r.by, r.absent = why, by, r.absentRanks()
	a.close(r)
	for _, cl := range r.joiners {
		cl.ends = timer{}
	}
	if len(r.joiners) > 1 {
		a.w.tally["attempts failed for several"]++
	}
}

// joins handles a rank that joins a rendezvous.
func (a *audit) joins(cl *call) {
	c := &cl.req.Group
	if g, _ := a.joinedBy(cl); g != nil {
		cl.rendezvous = g.rendezvous
		a.w.tally["joins repeated"]++
		return
	}
	var r *rendezvous
	if c.Generation != 0 {
		g := a.memberOf(cl)
		if g == nil {
			return
		}
		r = a.rendezvous(g.key, g, len(g.members))
	} else {
		if c.Rank < 0 || c.Rank >= c.Size {
			cl.refusal = wire.CodeInvalid
			return
		}
		key := groupKey{c.Group, c.Run}
		a.supersede(key, cl)
		if g := a.live[key]; g != nil && c.Rank < len(g.members) && g.members[c.Rank].gone == wire.CodeOK {
			cl.refusal = wire.CodeConflict
			return
		}
		if s := a.survivors(key); s != nil && c.Rank < len(s.joiners) { // the end of the earlier attempt completes it
			cl.refusal = wire.CodeConflict
			return
		}
		r = a.rendezvous(key, nil, c.Size)
		if r.size != c.Size {
			cl.refusal = wire.CodeMismatch
			r.fail(a, wire.CodeMismatch, -1)
			return
		}
	}
	if x := r.joiners[c.Rank]; x != nil && !r.replace(a, x, cl) {
		cl.refusal = wire.CodeConflict
		return
	}
	if len(r.joiners) == 0 && !slices.Contains(a.rendezvouses, r) { // its only request was replaced
		a.rendezvouses = append(a.rendezvouses, r)
	}
	r.joiners[c.Rank] = cl
	cl.rendezvous = r
}

// supersede releases what an earlier attempt of the same process held, in favor of the next.
func (a *audit) supersede(key groupKey, cl *call) {
	c := &cl.req.Group
	if g := a.live[key]; g != nil && c.Rank < len(g.members) && g.members[c.Rank].gone == wire.CodeOK && retries(g.rendezvous.ranked(c.Rank), cl) {
		a.w.tally["attempts replaced by a later one"]++
		a.fence(g, c.Rank, wire.CodeLeft)
	}
	for _, r := range slices.Clone(a.rendezvouses) {
		if x := r.joiners[c.Rank]; r.key == key && r.from == nil && x != nil {
			r.replace(a, x, cl)
		}
	}
}

// survivors returns the rendezvous of the survivors of a generation that lacks no rank now, or nil.
func (a *audit) survivors(key groupKey) *rendezvous {
	for _, r := range a.rendezvouses {
		if r.key == key && r.from != nil && len(r.joiners) > 0 && len(r.absentRanks()) == 0 {
			return r
		}
	}
	return nil
}

// ranked returns the request that became rank of the generation that r made.
func (r *rendezvous) ranked(rank int) *call {
	ranks := slices.Sorted(maps.Keys(r.joiners))
	return r.joiners[ranks[rank]]
}

// retries reports whether cl is a later attempt than x of the same process.
func retries(x, cl *call) bool {
	return bytes.Equal(x.req.Claim, cl.req.Claim) && cl.req.Attempt > x.req.Attempt
}

// replace removes x in favor of cl, if cl is a later attempt of the same process.
func (r *rendezvous) replace(a *audit, x, cl *call) bool {
	if !retries(x, cl) {
		return false
	}
	a.w.tally["attempts replaced by a later one"]++
	x.superseded, x.ends = true, timer{}
	r.withdraw(a, x)
	return true
}

// joinedBy returns the group in which a call has taken a membership slot.
func (a *audit) joinedBy(cl *call) (*group, int) {
	for _, g := range a.inOrder {
		for rank, s := range g.members {
			if s.session == cl.session && s.join == cl.req.ID && s.gone == wire.CodeOK {
				return g, rank
			}
		}
	}
	return nil, 0
}

// rendezvous returns the rendezvous that is open, or opens one.
func (a *audit) rendezvous(key groupKey, from *group, size int) *rendezvous {
	for _, r := range a.rendezvouses {
		if r.key == key && r.from == from {
			return r
		}
	}
	r := &rendezvous{key: key, from: from, size: size, joiners: map[int]*call{}}
	a.rendezvouses = append(a.rendezvouses, r)
	return r
}

func (a *audit) close(r *rendezvous) {
	a.rendezvouses = slices.DeleteFunc(a.rendezvouses, func(x *rendezvous) bool { return x == r })
}

// withdraw removes a rank from the rendezvous.
func (r *rendezvous) withdraw(a *audit, cl *call) {
	if r.gen != 0 || r.frozen || r.failed != wire.CodeOK || r.joiners[cl.req.Group.Rank] != cl {
		return
	}
	delete(r.joiners, cl.req.Group.Rank)
	if len(r.joiners) == 0 {
		a.close(r)
	}
}

// freeze marks the rendezvous of survivors that are complete because other ranks failed. If a
// survivor fails too in the same step, that counts as after the completion.
func (a *audit) freeze() {
	for _, r := range slices.Clone(a.rendezvouses) {
		if r.from != nil && len(r.joiners) > 0 && r.absentRanks() == nil {
			r.frozen = true
			a.close(r)
			a.retire(r.from)
		}
	}
}

// retire ends the generation whose ranks have a new one.
func (a *audit) retire(g *group) {
	for rank := range g.members {
		a.fence(g, rank, wire.CodeLeft)
	}
}

// absentRanks returns the ranks that r still needs.
func (r *rendezvous) absentRanks() (ranks []int) {
	for rank := range r.size {
		if r.joiners[rank] == nil && (r.from == nil || r.from.members[rank].gone == wire.CodeOK) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// joined checks the answer to a rank in a rendezvous.
func (a *audit) joined(cl *call, rep *wire.Reply) {
	r := cl.rendezvous
	if rep.Code == wire.CodeOK {
		if r.gen == 0 {
			a.complete(r, rep)
		}
		g2TogetherAtOnce(a, r, cl, rep)
		return
	}
	r.withdraw(a, cl)
	g5OneOutcome(r, cl, rep)
}

// complete makes the generation that a rendezvous has become.
func (a *audit) complete(r *rendezvous, rep *wire.Reply) {
	if absent := r.absentRanks(); absent != nil && !r.frozen {
		breaks("G2 a rendezvous is complete when all are there at the same time", "generation %d has been issued without ranks %v", rep.Rev, absent)
	}
	g1GenerationsUnique(a, rep.Rev)
	a.close(r)
	g := &group{gen: rep.Rev, key: r.key, rendezvous: r, uses: map[string]int{}}
	for rank := range r.size {
		if cl := r.joiners[rank]; cl != nil {
			g.members = append(g.members, auditMember{session: cl.session, join: cl.req.ID})
			r.members = append(r.members, cl.req.Value)
		}
	}
	g.present = len(g.members)
	r.gen = g.gen
	a.groups[g.gen] = g
	a.inOrder = append(a.inOrder, g)
	a.live[g.key] = g
	a.w.tally["groups"]++
	if r.from != nil {
		a.w.tally["shrunk groups"]++
		a.retire(r.from)
	}
	for _, session := range a.overdue { // since, in the same step
		for rank, s := range g.members {
			if s.session == session {
				a.fence(g, rank, wire.CodeLost)
			}
		}
	}
}

// g1GenerationsUnique checks G1: generation numbers are never reused, and grow.
func g1GenerationsUnique(a *audit, gen uint64) {
	if gen <= a.lastGen {
		breaks("G1 no number is issued twice", "generation %d after %d", gen, a.lastGen)
	}
	a.lastGen = gen
}

// g2TogetherAtOnce checks G2: an open rendezvous is complete only when all ranks are present at the
// same time; then all get the same answer. A shrunk group has dense ranks, in the old order. A rank
// gets the ranks of its node, and the members if they are few.
func g2TogetherAtOnce(a *audit, r *rendezvous, cl *call, rep *wire.Reply) {
	const p = "G2 a rendezvous is complete when all are there at the same time"
	if r.joiners[cl.req.Group.Rank] != cl || rep.Rev != r.gen {
		breaks(p, "%s gets generation %d, which is not its rendezvous's", cl, rep.Rev)
	}
	rank := slices.Index(slices.Sorted(maps.Keys(r.joiners)), cl.req.Group.Rank)
	want := r.members
	if len(want) > a.w.bounds.Inline {
		want = nil
	}
	n := int64(0)
	if r.from != nil {
		n = int64(rank) + 1
	}
	if rep.N != n || len(rep.Nums) < 4 || !slices.EqualFunc(rep.Values, want, bytes.Equal) {
		breaks(p, "%s gets rank %d %d and members %q, not rank %d and %q", cl, rep.N, rep.Nums, rep.Values, rank, want)
	}
	size, host, nodes, id, local := rep.Nums[0], int64(-1), map[uint64]bool{}, rep.Nums[3], wire.RankSet(rep.Nums[4:])
	own, _ := wire.MemberNode(r.members[rank])
	for other, b := range r.members {
		node, hosts := wire.MemberNode(b)
		nodes[node] = true
		if hosts {
			host = int64(other)
		}
		if local.Has(other) != (node == own) {
			breaks(p, "%s gets %v as its node's ranks, and %q", cl, local, r.members)
		}
	}
	if r.id == 0 {
		r.id = id
		a.w.tally[map[bool]string{true: "joins with the members", false: "joins without"}[len(want) > 0]]++
	}
	if int(size) != len(r.members) || rep.Nums[1] != host || int(rep.Nums[2]) != len(nodes) || id != r.id || id == 0 {
		breaks(p, "%s gets size, host, nodes and id %d, and %q; the first got id %d", cl, rep.Nums[:4], r.members, r.id)
	}
}

// asksMembers handles a rank that asks for members of its group.
func (a *audit) asksMembers(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		a.w.tally["requests for members refused"]++
		return
	}
	all := g.rendezvous.members
	first, n := int(cl.req.First), int(cl.req.Count)
	if first < 0 || first > len(all) {
		cl.refusal = wire.CodeInvalid
		return
	}
	if n == 0 {
		n = len(all)
	}
	if g.revocation != nil || g.present < len(all) {
		a.w.tally["requests for members after a loss"]++
	}
	cl.expect = &wire.Reply{Values: all[first:min(first+n, len(all))]}
}

// g8MembersOfTheGroup checks G8: a rank of a group gets what its ranks said of themselves when they
// joined, even after some have left or failed, and when the group is revoked.
func g8MembersOfTheGroup(cl *call, rep *wire.Reply) {
	if rep.Code != wire.CodeOK || !slices.EqualFunc(rep.Values, cl.expect.Values, bytes.Equal) {
		breaks("G8 a rank gets the members of its group", "%s: %s, not %q", cl, say{rep}, cl.expect.Values)
	}
}

// g3CompleteWhenAllThere checks G3: a rendezvous in which all ranks are present does not wait; a
// shrink does not wait for ranks that are gone.
func g3CompleteWhenAllThere(r *rendezvous) {
	if r.gen == 0 && len(r.joiners) > 0 && r.absentRanks() == nil {
		breaks("G3 a rendezvous completes when all are there", "rendezvous %v of %d waits", r.key, r.size)
	}
}

// g4RevokedForCause checks G4: a generation is revoked by a failed rank, a mismatch, an abort or an
// overrun, and by nothing else; all callers get the first of these reasons, with the same text.
// This is C1 for the verbs that come after the end.
func g4RevokedForCause(g *group, cl *call, rep *wire.Reply) {
	const p = "G4 a generation is revoked for a cause, the same for all"
	v := rep.Failure
	if v == nil || g.revocation == nil {
		breaks(p, "%s: %s", cl, say{rep})
	}
	got := canonical(rep)
	if g.delivered == nil {
		g.delivered = got
	}
	right := v.Code == g.revocation.code && rep.Code == v.Code
	switch g.revocation.code {
	case wire.CodeLost:
		right = right && slices.Contains(v.Lost, g.revocation.rank) && (g.revocation.why == "" || slices.Equal(v.Lost, g.revocation.ranks) && v.Reason == g.revocation.why)
	case wire.CodeAborted:
		right = right && v.By == g.revocation.rank
	case wire.CodeMismatch:
		right = right && v.Clash == nil && v.By == g.revocation.rank || right && len(v.Clash) == 2 && (v.Clash[1].Rank == g.revocation.rank) && g.hasVote(&v.Clash[0]) && g.hasVote(&v.Clash[1])
	}
	if !right || !bytes.Equal(got, g.delivered) {
		breaks(p, "%s: got %s; the cause was %+v; others got %q", cl, say{rep}, *g.revocation, g.delivered)
	}
}

// g5OneOutcome checks G5: an attempt has one outcome. All ranks in it get the same failure, with
// the same text: the earliest deadline passed, one of the ranks cancelled, or sizes differ; and it
// names exactly the absent ranks. Apart from that a rank is not admitted only because a later
// attempt of its process has replaced it, or it has left its old group.
func g5OneOutcome(r *rendezvous, cl *call, rep *wire.Reply) {
	const p = "G5 an attempt to form a group has one outcome"
	c := &cl.req.Group
	v := rep.Failure
	switch {
	case cl.superseded:
		if rep.Code != wire.CodeConflict {
			breaks(p, "%s was replaced: %s", cl, say{rep})
		}
		return
	case rep.Code == wire.CodeClosed:
		if r.from == nil || r.from.members[c.Rank].gone == wire.CodeOK {
			breaks(p, "%s: closed", cl)
		}
		return
	case v == nil || r.failed != rep.Code || r.failed == wire.CodeOK:
		breaks(p, "%s: %s; the attempt: %s", cl, say{rep}, r.failed)
	}
	got := canonical(rep)
	if r.delivered == nil {
		r.delivered = got
	}
	by := r.failed == wire.CodeCancelled && v.By != r.by || r.failed != wire.CodeCancelled && v.By != -1
	if by || !bytes.Equal(got, r.delivered) || r.failed != wire.CodeMismatch && !slices.Equal(v.Missing, r.absent) {
		breaks(p, "%s: %s; missing are %v, the first got %q", cl, say{rep}, r.absent, r.delivered)
	}
}

// a1AnsweredOnce checks A1: an answer goes to an existing session, to a waiting call, exactly once.
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

// a2NoEarlyTimeout checks A2: no call that waits on its own times out before its deadline, by the
// store's clock or its caller's, or is cancelled by others. (A record has the earliest deadline of
// all its voters, C3, and an attempt to form a group that of all ranks in it, G5.)
func a2NoEarlyTimeout(a *audit, cl *call, rep *wire.Reply) {
	switch {
	case cl.req.Op == wire.OpCollect, cl.req.Op == wire.OpJoin, rep.Code == cl.cancelled:
	case rep.Code == wire.CodeCancelled:
		breaks("A2 no call is cancelled by others", "%s came at %v, it is %v", cl, cl.at, a.now)
	case rep.Code == wire.CodeTimeout && (cl.timeout == 0 || cl.at+cl.timeout > a.now):
		breaks("A2 no call times out early", "%s came at %v, it is %v", cl, cl.at, a.now)
	}
}

// n1NothingLeaks checks N1: when all sessions have ended only keys are left: no generation,
// rendezvous, record, stream, waiting call or timer.
func n1NothingLeaks(a *audit) {
	h := a.w.m.Holdings()
	if h != (core.Holdings{}) {
		breaks("N1 nothing leaks", "%+v", h)
	}
	if n := len(a.keys.entries); n != a.w.m.Keys() {
		breaks("N1 nothing leaks", "%d keys, there are %d", a.w.m.Keys(), n)
	}
}

// m1AccountIsTrue checks M1: after every step the memory that the machine has accounted for is what
// it holds, for each session and in total.
func m1AccountIsTrue(a *audit) {
	if kept, tally, sessions := a.w.m.Account(); kept != tally || !sessions {
		breaks("M1 the account is true", "%d bytes are charged, %d are there; the sessions agree: %v", kept, tally, sessions)
	}
}
