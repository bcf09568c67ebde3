package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// recordBytes bounds the payloads of one record together: each rank may get all of them in one
// reply.
const recordBytes = 256 << 20

// record decides one collective operation of a group, which its generation, channel and sequence
// number name. Each rank sends one vote, and the record ends with one decision that all ranks get.
//
// A record is open until it is decided, and is kept until every rank has passed it:
//
//	open ──vote──▶ open
//	  │  last vote that success needs          ──▶ decided: success
//	  │  a vote of no, two votes that differ,
//	  │  a needed rank left, failed or skipped,
//	  │  the earliest deadline, a revocation   ──▶ decided: failure
//	decided ──every rank has passed it──▶ freed
//
// Its invariants:
//
//  1. A decision is final. Later votes get it, and change nothing.
//  2. It succeeds only with a vote of every rank that it requires: of all ranks, or of the root
//     alone (call.RootOnly: readers of a broadcast do not keep the root waiting).
//  3. A vote counts once, and still counts after its rank has failed. A rank that sends it again,
//     after a reconnect, gets the same result.
//  4. All ranks get the same result. A failure names all ranks at fault, not only the one that was
//     noticed first.
//
// This is an atomic commitment as in two-phase commit, with one difference: the coordinator, which
// is the store, decides alone, since it has all votes in its memory. Ranks need no second phase: a
// rank that loses the answer asks for it again.
type record struct {
	ch           *channel
	payer        uint64 // the session that is charged cost for it
	cost         int    // in bytes, without the payloads
	seq          uint64
	call         wire.Contribution // of the first vote; all other votes must agree
	votes        []vote            // by rank
	yes          int               // how many of votes are a yes
	last         int32             // 1 + the rank whose required vote came last; 0: unknown
	pending      int               // present ranks that have not passed it
	skipped      []int             // ranks that had passed it before its first vote
	bytes        int               // of all payloads
	began        Time              // when the first vote came
	timer        timer             // the earliest deadline of all votes
	stall        *stallTimer       // nil: no vote has a stall; call.Stall is the least one
	done         bool
	failed       *wire.Reply // the reply to all ranks, if it is decided as a failure
	allReply     *wire.Reply // the reply to WantAll, which ranks share
	reducedReply *wire.Reply // to WantReduced
	rootReply    *wire.Reply // to ranks that want the payload of the root
	parts        [][][]byte  // by rank: its payload as parts, one for each rank; for WantPart
}

// vote is one rank's vote.
type vote struct {
	waiter  waiter // the call that waits for the decision, if waiting
	payload []byte
	want    int32 // what its rank wants of the decided record
	yes     bool  // it has been sent and counts
	waiting bool
}

// open reports whether r is not decided.
func (r *record) open() bool         { return !r.done }
func (r *record) timerState() *timer { return &r.timer }

// requires reports whether r succeeds only with a vote of rank.
func (r *record) requires(rank int) bool { return !r.call.RootOnly || rank == r.call.Root }

// lacks reports whether r cannot succeed now because a vote of rank is missing.
func (r *record) lacks(rank int) bool { return r.requires(rank) && !r.votes[rank].yes }

// collect takes a vote: of a record that is open or decided, or the first vote of a new one.
//
// A rank has one floor for each channel, the highest sequence number that it has passed. A vote
// passes all records before its own, as ranks call operations in order. A vote at or below the
// floor is refused: without that a duplicate of an old request, which the network has delayed,
// would open a record again that was freed.
func (m *Machine) collect(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, s := m.memberOf(t, c, rep)
	if g == nil {
		return true
	}
	ch := m.openChannel(g, t.Session, c, rep)
	if ch == nil {
		return true
	}
	if c.Seq <= ch.floor[c.Rank] {
		return refuse(rep, wire.CodeStale, fmt.Sprintf("rank %d has passed sequence %d", c.Rank, c.Seq))
	}
	s.noteCall(m, c.Verb, c.Seq)
	if s.progress != nil {
		s.progress.at = m.now
	}
	ch.advance(m, c.Rank, c.Seq-1, reasonSkipped)
	r := ch.records[c.Seq]
	if r == nil {
		if g.revoked != nil {
			*rep = *g.revoked
			return true
		}
		if len(ch.records) >= m.bounds.window {
			m.revoke(g, ch.overrun(m), everyRecord)
			*rep = *g.revoked
			return true
		}
		r = ch.openRecord(m, c)
	}
	return m.addVote(r, t, req, rep)
}

// openRecord makes the record for c, the first vote that arrives. Ranks that have passed its
// sequence number already are in skipped: if the record requires one of them, its first vote fails
// it.
func (ch *channel) openRecord(m *Machine, c *wire.Contribution) *record {
	r := &record{ch: ch, seq: c.Seq, began: m.now, votes: ch.spare, call: *c}
	ch.spare = nil
	if r.votes == nil {
		r.votes = make([]vote, len(ch.g.members))
	}
	r.call.Group, r.call.Run, r.call.Reason, r.call.Channel = "", "", "", ch.name
	r.call.Verb, r.call.Type, r.call.Label = m.keep(c.Verb), m.keep(c.Type), m.keep(c.Label)
	for rank, f := range ch.floor {
		if p := ch.g.members[rank].progress; p != nil {
			p.changes = 0
		}
		switch {
		case ch.g.members[rank].gone != wire.CodeOK:
		case f < c.Seq:
			r.pending++
		default:
			r.skipped = append(r.skipped, rank)
		}
	}
	ch.records[c.Seq] = r
	r.payer, r.cost = ch.g.members[c.Rank].session, newRecordCost(c, len(r.votes))
	m.account.charge(r.payer, r.cost)
	return r
}

// addVote adds one rank's vote to r, open or decided. It reports whether rep has the answer; if
// not, the rank waits for the decision.
//
// A vote that differs from a successful record revokes the group: the other ranks already act on a
// success that this rank did not take part in. A vote of no is another matter: its rank knows that
// it has failed, and fails alone.
func (m *Machine) addVote(r *record, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	b := &r.votes[c.Rank]
	switch {
	case r.done && r.failed == nil && c.No != wire.CodeOK && !Agree(&r.call, c):
		// Only this rank fails: it made no other call.
		*rep = *failureReply(m.refusal(r, c.Rank, c.No, c.Reason))
		return true
	case r.done && r.failed == nil && !Agree(&r.call, c):
		m.revoke(r.ch.g, clash(&r.call, c), everyRecord)
		*rep = *r.ch.g.revoked
		return true
	case r.done:
		*rep = *m.replyFor(r, c.Rank, c.Want)
		return true
	}
	if b.waiting { // sent again: the vote still counts, the newer call gets the answer
		m.answer(&b.waiter, &wire.Reply{Code: wire.CodeConflict, Detail: "superseded: this rank has sent the call again"})
	}
	b.waiting, b.want = true, c.Want
	m.register(&b.waiter, t, req, r) // the record has one deadline, the earliest
	if at := m.after(req.Timeout); req.Timeout > 0 && (r.timer.pos == 0 || at < r.timer.at) {
		m.arm(r, at)
	}
	if c.Stall > 0 && (r.call.Stall == 0 || c.Stall < r.call.Stall) {
		r.call.Stall = c.Stall
		m.unwatch(r)
	}
	if r.call.Stall > 0 && (r.stall == nil || r.stall.timer.pos == 0) {
		m.watch(r)
	}
	m.count(r, b, c, req.Value)
	return false
}

// count adds a vote to an open record, and decides the record if it can be decided then.
func (m *Machine) count(r *record, b *vote, c *wire.Contribution, payload []byte) {
	g := r.ch.g
	switch {
	case c.No != wire.CodeOK:
		m.decide(r, failureReply(m.refusal(r, c.Rank, c.No, c.Reason)))
	case !Agree(&r.call, c):
		v := clash(&r.call, c)
		v.Waited = m.now - r.began
		m.decide(r, failureReply(v))
		m.revoke(g, v, everyRecord)
	case b.yes: // a duplicate
	default:
		if why := r.malformed(c, payload); why != "" {
			m.decide(r, failureReply(m.refusal(r, c.Rank, wire.CodeInvalid, why)))
			return
		}
		if r.call.Type == "" && c.Type != "" { // later types are compared with this rank's
			r.call.Type, r.call.Rank, r.call.Want = m.keep(c.Type), c.Rank, c.Want
		}
		b.yes, b.payload = true, payload
		if len(payload) > 0 {
			m.account.charge(g.members[c.Rank].session, rounded(len(payload)))
		}
		if r.requires(c.Rank) {
			r.last = int32(c.Rank) + 1
		}
		r.yes++
		r.bytes += len(payload)
		r.ch.bytes += len(payload)
		m.decideIfPossible(r)
	}
}

// decideIfPossible decides r if the votes that it has allow it. Failures come first: a required
// rank that has left, failed or skipped the record will never vote.
func (m *Machine) decideIfPossible(r *record) {
	g := r.ch.g
	if len(g.members) != g.present {
		if v := r.unreachable(m); v != nil {
			m.decide(r, failureReply(v))
			return
		}
	}
	for _, rank := range r.skipped {
		if r.lacks(rank) {
			m.decide(r, failureReply(m.refusal(r, rank, wire.CodeSkipped, r.ch.skipReason(rank))))
			return
		}
	}
	switch {
	case r.bytes > recordBytes:
		m.decide(r, failureReply(&wire.Failure{
			Code: wire.CodeTooLarge, By: -1, Waited: m.now - r.began,
			Reason: fmt.Sprintf("%d bytes from all ranks together, the limit is %d", r.bytes, recordBytes),
		}))
	case !r.call.RootOnly && r.yes == len(r.votes):
		m.decide(r, nil)
	case r.call.RootOnly && r.votes[r.call.Root].yes:
		if r.ch.overWindow(m, r) {
			r.ch.blocked = append(r.ch.blocked, r)
			return
		}
		m.decide(r, nil)
	}
}

// unreachable returns the failure if r can no longer succeed because a rank whose vote it requires
// has left or failed, and nil otherwise. A failed rank takes precedence for the code: it revokes
// the group.
func (r *record) unreachable(m *Machine) *wire.Failure {
	v := &wire.Failure{By: -1, Waited: m.now - r.began}
	first, end := 0, len(r.votes)
	if r.call.RootOnly { // readers may be many, and each of their votes comes here
		first, end = r.call.Root, r.call.Root+1
	}
	for rank := first; rank < end; rank++ {
		switch gone := r.ch.g.members[rank].gone; {
		case gone == wire.CodeOK || !r.lacks(rank):
		case gone == wire.CodeLost:
			v.Lost = append(v.Lost, rank)
			v.Code, v.Reason = wire.CodeLost, r.ch.g.members[rank].label
		default:
			v.Left = append(v.Left, rank)
			if v.Code == wire.CodeOK {
				v.Code = wire.CodeLeft
			}
		}
	}
	if v.Code == wire.CodeOK {
		return nil
	}
	return v
}

// decide ends r: as a failure, or as a success if no is nil. It answers all ranks that wait. r must
// be open: a decision is final.
func (m *Machine) decide(r *record, no *wire.Reply) {
	r.done, r.failed = true, no
	m.disarm(r)
	m.unwatch(r)
	r.ch.blocked = slices.DeleteFunc(r.ch.blocked, func(x *record) bool { return x == r })
	if no != nil {
		r.forgetPayloads(m)
		appendFailure(&r.ch.g.failures, m.newPastFailure(r.ch.name, r.call.Verb, r.seq, no.Failure))
	}
	m.effects = slices.Grow(m.effects, r.yes)
	for rank := range r.votes {
		if b := &r.votes[rank]; b.waiting {
			b.waiting = false
			m.answer(&b.waiter, m.replyFor(r, rank, b.want))
		}
	}
	if r.pending == 0 {
		r.ch.free(m, r)
	}
	if no != nil {
		r.ch.unblockRoots(m) // the payloads are gone
	}
}

// forgetPayloads frees the payloads of a failed record, which no rank gets.
func (r *record) forgetPayloads(m *Machine) {
	r.eachPayload(m.account.release)
	for i := range r.votes {
		r.votes[i].payload = nil
	}
	r.ch.bytes -= r.bytes
	r.bytes = 0
}

// refusal returns the failure that rank's vote of no makes, or its lack of a vote.
func (m *Machine) refusal(r *record, rank int, code wire.Code, reason string) *wire.Failure {
	v := &wire.Failure{Code: code, By: rank, Reason: strings.Clone(reason), Waited: m.now - r.began}
	m.addMissing(v, r.ch.g, r.seq, r.missing(rank))
	return v
}

// missing returns the ranks whose votes r lacks, but for one (-1: none). If it lacks no vote, and its
// root waits for readers, it returns the slowest of those.
func (r *record) missing(except int) (a missing) {
	for rank := range r.votes {
		if r.lacks(rank) && rank != except {
			a.add(rank)
		}
	}
	if a.count == 0 && slices.Contains(r.ch.blocked, r) {
		return r.ch.slowest(except)
	}
	return a
}

// due fails r: the earliest deadline of its votes has passed.
func (r *record) due(m *Machine) {
	v, late := &wire.Failure{Code: wire.CodeTimeout, By: -1, Waited: m.now - r.began}, r.missing(-1)
	v.Reason = m.sharedCause(r.ch.g, late.ranks)
	m.addMissing(v, r.ch.g, r.seq, late)
	m.decide(r, failureReply(v))
}

// drop ends the wait of one vote. A deadline or a cancel fails the record for all ranks. The end of
// a session, or of its membership, ends the wait alone: the vote still counts.
func (r *record) drop(m *Machine, w *waiter, why wire.Code) {
	switch {
	case sessionEnded(why):
		r.votes[w.rank].waiting = false
		m.unregister(w)
	case why == wire.CodeClosed:
		r.votes[w.rank].waiting = false
		m.answer(w, &wire.Reply{Code: why})
	case why == wire.CodeTimeout:
		r.due(m)
	default:
		m.decide(r, failureReply(m.refusal(r, w.rank, why, m.cancelReason)))
	}
}

// doing implements owner.
func (r *record) doing(w *waiter) (*group, string) {
	return r.ch.g, fmt.Sprintf("%s #%d", Describe(&r.call), r.seq)
}

// clash returns the failure of two ranks whose calls differ.
func clash(a, b *wire.Contribution) *wire.Failure {
	own := *b
	own.Group, own.Run, own.Reason = "", "", ""
	own.Channel, own.Verb, own.Type, own.Label = a.Channel, strings.Clone(b.Verb), strings.Clone(b.Type), strings.Clone(b.Label)
	return &wire.Failure{Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{*a, own}}
}
