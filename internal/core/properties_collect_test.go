package core_test

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// The properties of Collect, one function each. The auditor checks them at every step of every
// schedule.
//
// An outcome of a record is an answer to a vote for it that is a success, or has a Failure. Three
// other answers to a vote are possible, and are not outcomes of its record:
//
//   - A refusal has a code and no Failure: the membership slot is not the caller's (Stale, Invalid,
//     Denied, Closed), the rank has passed the sequence number (Stale), the rank called again
//     (Conflict, to the earlier call), or left or closed the channel while it waited (Closed).
//   - The end of the generation, as the answer to a vote for a record that was never opened. It is
//     the same for all callers, and no rank can have received another outcome of that record, since
//     a record that is revoked unopened stays so.
//   - A late mismatch: a rank whose call differs from a record that was decided with success. Its
//     call is not what the others did together: its answer is the mismatch, which revokes the
//     generation; the others keep their success. If it had voted no, its answer is its own no, and
//     nothing is revoked.

// c1SameOutcome checks C1: all delivered outcomes of a record are equal. The payloads differ by
// rank; C7 checks those.
func c1SameOutcome(r *record, cl *call, rep *wire.Reply) {
	got := canonical(rep)
	if r.canon == nil {
		r.canon = got
	}
	if !bytes.Equal(r.canon, got) {
		breaks("C1 all delivered outcomes of a record are equal", "%s: one rank got %q, another %q", cl, r.canon, got)
	}
	if rep.Code == wire.CodeOK && r.verbDiffers(cl.vote) {
		breaks("C1 all delivered outcomes of a record are equal", "%s is not what was decided, and got success", cl)
	}
	if rep.Code != wire.CodeOK && r.done && r.ok {
		breaks("C1 all delivered outcomes of a record are equal", "%s: a success is delivered as %s", cl, rep.Code)
	}
}

// canonical encodes the part that must be equal in two answers: the code and the failure.
func canonical(rep *wire.Reply) []byte {
	if rep.Code == wire.CodeOK {
		return []byte{0}
	}
	return wire.AppendReply(nil, wire.OpCollect, 0, &wire.Reply{Code: rep.Code, Failure: rep.Failure})
}

func (r *record) verbDiffers(v *vote) bool { return v.c.No == wire.CodeOK && !agree(&r.call, v.c) }

// c1Refusals checks the exceptions of C1: the refusal of a valid vote has one of two reasons.
func c1Refusals(r *record, cl *call, rep *wire.Reply) {
	switch {
	case rep.Code == wire.CodeConflict && r.asker[cl.vote.rank] != cl:
	case rep.Code == wire.CodeClosed && (r.ch.g.members[cl.vote.rank].gone != wire.CodeOK || r.ch.closed[cl.vote.rank]):
	default:
		breaks("C1 a vote has an outcome, or a reason why it has none", "%s: %s", cl, say{rep})
	}
}

// c1LateMismatch checks the exceptions of C1: the answer to a late mismatch is the mismatch, or the
// earlier reason of the end of the generation.
func c1LateMismatch(cl *call, rep *wire.Reply) {
	c, v := &cl.req.Group, rep.Failure
	switch {
	case v == nil:
		breaks("C1 a late mismatch is delivered", "%s: %s", cl, say{rep})
	case c.No != wire.CodeOK && (v.Code != c.No || v.By != c.Rank || v.Reason != c.Reason):
		breaks("C1 a late no is its caller's", "%s: %s", cl, say{rep})
	case c.No != wire.CodeOK:
		return
	}
	g4RevokedForCause(cl.group, cl, rep)
}

// c2SuccessMeans checks C2: success ⇒ every elector voted yes once, with the same fingerprint, from
// its bound session. (C7 checks that the delivered payloads are those of the votes.) Votes from
// other sessions never get into r.yes.
func c2SuccessMeans(r *record) {
	const p = "C2 success ⇒ every elector voted yes, with the same fingerprint"
	if r.no != nil {
		breaks(p, "#%d succeeded, rank %d had said no", r.seq, r.no.rank)
	}
	if r.clash != nil {
		breaks(p, "#%d succeeded, rank %d had called %s", r.seq, r.clash.rank, r.clash.c.Verb)
	}
	for rank, v := range r.yes {
		if r.requires(rank) && v == nil {
			breaks(p, "#%d (%s) succeeded without rank %d", r.seq, r.call.Verb, rank)
		}
		for _, u := range r.yes[:rank] {
			if v != nil && u != nil && !agree(u.c, v.c) {
				breaks(p, "#%d succeeded, rank %d called %s, rank %d %s", r.seq, u.rank, u.c.Verb, v.rank, v.c.Verb)
			}
		}
	}
}

// c3FailureNames checks C3: a failure that names r as missing, lost or gone ⇒ r had no yes at the
// decision; a rank that is named for a no is in none of these lists, and has voted no; a mismatch ⇒
// both votes exist, and differ.
//
// Exception: the ranks that are too far behind (CodeFull) are named for the channel in which they
// are behind; the failure also ends records of other channels, where they may have voted yes.
func c3FailureNames(a *audit, r *record, v *wire.Failure) {
	const p = "C3 a failure names those at fault"
	g := r.ch.g
	for _, rank := range slices.Concat(v.Missing, v.Lost, v.Left) {
		switch {
		case rank < 0 || rank >= len(g.members):
			breaks(p, "#%d: rank %d of %d", r.seq, rank, len(g.members))
		case rank == v.By:
			breaks(p, "#%d: rank %d said no (%s), and is missing", r.seq, rank, v.Code)
		case r.yes[rank] != nil && v.Code != wire.CodeFull:
			breaks(p, "#%d %s: rank %d had said yes", r.seq, v.Code, rank)
		}
	}
	for _, rank := range v.Lost {
		if g.members[rank].gone != wire.CodeLost {
			breaks(p, "#%d: rank %d is not lost", r.seq, rank)
		}
	}
	if g.revocation != nil && v.Code == wire.CodeLost {
		for _, rank := range g.revocation.ranks {
			if r.requires(rank) && r.yes[rank] == nil && !slices.Contains(v.Lost, rank) {
				breaks(p, "#%d: rank %d was lost with others, and is not named with %v", r.seq, rank, v.Lost)
			}
		}
	}
	for _, rank := range v.Left {
		if g.members[rank].gone != wire.CodeLeft {
			breaks(p, "#%d: rank %d has not left", r.seq, rank)
		}
	}
	if !c3HasCause(a, r, v) {
		breaks(p, "#%d: nothing that has happened is a reason for %s", r.seq, say{&wire.Reply{Code: v.Code, Failure: v}})
	}
}

// c3HasCause reports whether an event that has happened is a reason for v.
func c3HasCause(a *audit, r *record, v *wire.Failure) bool {
	g := r.ch.g
	switch v.Code {
	case wire.CodeMismatch:
		return g.all && v.Clash == nil && v.By >= 0 || g.all && len(v.Clash) == 2 && !agree(&v.Clash[0], &v.Clash[1]) && g.hasVote(&v.Clash[0]) && g.hasVote(&v.Clash[1])
	case wire.CodeLost:
		return len(v.Lost) > 0
	case wire.CodeLeft:
		return len(v.Left) > 0 && len(v.Lost) == 0
	case wire.CodeFull:
		return g.all && len(v.Missing) > 0
	case wire.CodeStalled:
		return r.stalled && len(v.Missing) > 0
	}
	if v.By >= 0 {
		return r.refusedBy(v) || v.Code == wire.CodeAborted && g.all || v.Code == wire.CodeSkipped && r.ch.floor[v.By] >= r.seq && r.yes[v.By] == nil
	}
	at := a.now
	if r.ended {
		at = r.endedAt
	}
	return v.Code == wire.CodeTimeout && r.deadline > 0 && r.deadline <= at
}

// refusedBy reports whether the rank that v blames has voted no to r, with this text.
func (r *record) refusedBy(v *wire.Failure) bool {
	no := r.no
	if no == nil || no.rank != v.By {
		return false
	}
	switch no.kind {
	case cancelled:
		return v.Code == wire.CodeCancelled
	case absurd:
		return v.Code == wire.CodeInvalid
	}
	return v.Code == no.c.No && v.Reason == no.c.Reason
}

// hasVote reports whether the rank that c names has cast the vote c.
func (g *group) hasVote(c *wire.Contribution) bool {
	return slices.ContainsFunc(g.votes, func(v *wire.Contribution) bool {
		return v.Rank == c.Rank && v.Seq == c.Seq && v.Channel == c.Channel && v.Verb == c.Verb && v.Root == c.Root && v.RootOnly == c.RootOnly &&
			v.Type == c.Type && v.Label == c.Label && v.Reduction == c.Reduction && v.No == wire.CodeOK
	})
}

// c4DecidedStays checks C4: a decision never changes. (C1 also compares the delivered outcomes over
// time.)
func c4DecidedStays(r *record, s core.RecordState) {
	if r.done && (!s.Done || s.Failed == r.ok) {
		breaks("C4 decided never changes, freed never reopens", "#%d was decided (success: %v), and no longer is", r.seq, r.ok)
	}
}

// c5VotesCount checks C5: repeated votes change nothing: a record has as many yes votes as ranks
// that voted yes, and the bytes of the first payload of each. It also checks C7: votes from other
// sessions or generations change nothing either.
func c5VotesCount(r *record, s core.RecordState) {
	n, size := 0, 0
	for _, v := range r.yes {
		if v != nil {
			n++
			size += len(v.payload)
		}
	}
	if s.Failed {
		size = 0
	}
	if s.Yes != n || s.Size != size {
		breaks("C5 repeated votes change nothing, and others do not count", "#%d has %d yes of %d bytes; %d ranks have said it, with %d bytes", r.seq, s.Yes, s.Size, n, size)
	}
}

// c6BarrierMeans checks C6: the success of a barrier on any rank ⇒ every rank had called it. (A
// verb whose only elector is the root is not a barrier, whatever its name.)
func c6BarrierMeans(cl *call, rep *wire.Reply) {
	if cl.record == nil || rep.Code != wire.CodeOK || cl.req.Group.Verb != "barrier" || cl.req.Group.RootOnly {
		return
	}
	for rank, v := range cl.record.yes {
		if v == nil || v.c.Verb != "barrier" {
			breaks("C6 barrier success anywhere ⇒ every rank had called it", "%s: rank %d had not", cl, rank)
		}
	}
}

// c7OwnPayloads checks C7: no payload crosses records or ranks: a delivered payload is the one that
// was voted for this record, by the rank at whose place it is.
func c7OwnPayloads(r *record, cl *call, rep *wire.Reply) {
	value, values := r.brings(cl.vote)
	if !bytes.Equal(rep.Value, value) || !slices.EqualFunc(rep.Values, values, bytes.Equal) {
		breaks("C7 no payload crosses records", "%s brought %q %q, not %q %q", cl, rep.Value, rep.Values, value, values)
	}
}

// brings returns the payload that a vote for r asked for.
func (r *record) brings(v *vote) (value []byte, values [][]byte) {
	switch want := v.c.Want; {
	case want >= 0 && int(want) < len(r.yes):
		if u := r.yes[want]; u != nil {
			value = u.payload
		}
	case want == wire.WantAll:
		for _, u := range r.yes {
			values = append(values, u.payloadOf())
		}
	case want == wire.WantReduced && !r.call.Reduction.Valid(): // the reduction of a late no
	case want == wire.WantPart && r.call.RootOnly:
		values = [][]byte{r.yes[r.call.Root].parts[v.rank]}
	case want == wire.WantPart:
		for _, u := range r.yes {
			values = append(values, u.parts[v.rank])
		}
	case want == wire.WantReduced:
		value = r.reducedReply()
	}
	return value, values
}

// reducedReply returns the sum, or the maximum, of the two numbers of every rank.
func (r *record) reducedReply() (value []byte) {
	for i := 0; i < 16; i += 8 {
		var n int64
		for rank, u := range r.yes {
			switch x := int64(binary.LittleEndian.Uint64(u.payload[i:])); {
			case r.call.Reduction.Op == wire.ReduceSum:
				n += x
			case rank == 0 || x > n:
				n = x
			}
		}
		value = binary.LittleEndian.AppendUint64(value, uint64(n))
	}
	return value
}

func (v *vote) payloadOf() []byte {
	if v == nil {
		return nil
	}
	return v.payload
}

// c7RefusedCounts checks C7: a vote that is fenced, of an old generation, or from another session
// does not count: it is refused with the right code. So is a vote for a sequence number that its
// rank has passed (the floor), and every other call for a membership slot that is not the caller's.
func c7RefusedCounts(cl *call, rep *wire.Reply) {
	if rep.Code != cl.refusal || rep.Failure != nil && cl.req.Op == wire.OpCollect {
		breaks("C7 no fenced, foreign or passed vote counts", "%s is to be refused as %s, not as %s", cl, cl.refusal, say{rep})
	}
}

// c8FreedWhenPassed checks C8: freed ⇒ each rank has passed the record or is gone.
func c8FreedWhenPassed(a *audit, r *record) {
	if !r.passed() {
		breaks("C8 freed ⇒ each rank passed it or is fenced", "#%d is freed, and not all have passed it: floors %v", r.seq, r.ch.floor)
	}
	if !r.done && r.mustEnd(a) == "" && !r.allYes() {
		breaks("C8 freed ⇒ it was decided", "#%d", r.seq)
	}
}

// c8NothingElse checks C8: a channel has at most W records, and only the known ones: a freed record
// never reopens (C4).
func c8NothingElse(a *audit, ch *channel, before int) {
	n := a.w.m.Records(ch.g.gen, ch.name, before)
	if n > a.w.bounds.Window {
		breaks("C8 at most W records", "%d of %d", n, a.w.bounds.Window)
	}
	if n != len(ch.records) {
		breaks("C4 freed never reopens", "the machine has %d records in channel %q, there are %d", n, ch.name, len(ch.records))
	}
}

// l1Decides checks L1: all yes ⇒ success; a no, a mismatch, a revocation ⇒ decided. L2: a finite
// deadline ⇒ decided. L3: a failed elector ⇒ decided. Nothing else decides.
func l1Decides(a *audit, r *record) {
	if why := r.mustEnd(a); !r.done && why != "" {
		breaks(why, "#%d (%s) is open", r.seq, r.call.Verb)
	}
	if r.done && !r.ended {
		r.ended, r.endedAt = true, a.now
		if r.ok {
			c2SuccessMeans(r)
			a.w.tally.decided(r)
		}
		if r.why == "" && r.mustEnd(a) == "" {
			breaks("L1 nothing else decides", "#%d (%s) is decided (success: %v)", r.seq, r.call.Verb, r.ok)
		}
	}
	if !r.done && r.allYes() {
		a.w.tally["roots held"]++
	}
}

// l2DeadlineEnds checks L2: a call with a deadline is answered at its deadline, at the latest.
func l2DeadlineEnds(a *audit, cl *call) {
	if t := cl.timeout; t > 0 && cl.at+t <= a.now {
		breaks("L2 a finite deadline ends a call", "%s waits since %v, it is %v", cl, cl.at, a.now)
	}
}

// l4AllRanksLearn checks L4: every present rank gets the outcome: no call waits for a record that
// is decided, or for a generation that is revoked.
func l4AllRanksLearn(a *audit, cl *call) {
	switch {
	case cl.cancelled != wire.CodeOK:
		breaks("L4 a cancelled call ends", "%s waits", cl)
	case cl.record != nil && cl.record.done:
		breaks("L4 every connected rank learns", "%s waits for a record that is decided", cl)
	case cl.req.Op == wire.OpFollow && cl.group.revocation != nil:
		breaks("L4 every connected rank learns", "%s waits for a generation that is over", cl)
	case cl.group != nil && cl.group.members[cl.req.Group.Rank].gone != wire.CodeOK:
		breaks("L4 every connected rank learns", "%s waits as a member that has left", cl)
	}
	switch {
	case cl.stream != nil:
		p4NoCallWaitsInVain(a, cl)
	case cl.req.Op == wire.OpWait, cl.req.Op == wire.OpWatch:
		k2NoCallWaitsInVain(a, cl)
	}
}

// l5FreedWhenPassed checks L5: decided and passed by all ⇒ freed.
func l5FreedWhenPassed(r *record) {
	if r.done && r.passed() {
		breaks("L5 passed by all ⇒ freed", "#%d is kept", r.seq)
	}
}
