package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// recordBytes bounds the payloads of one record together.
const recordBytes = 256 << 20

// record is one group verb: a map from rank to vote, and at last a decision.
type record struct {
	ch           *channel
	payer        uint64 // session that is charged cost for it
	cost         int    // without payloads
	seq          uint64
	call         wire.Contribution // the first vote's: what all others must equal
	votes        []vote            // by rank
	yes          int
	last         int32 // 1 + the rank whose yes was the last that counted; 0: not known
	pending      int   // ranks that are there and have not passed it
	skipped      []int // ranks that had passed it before it was opened
	bytes        int
	born         Time
	timer        timer
	done         bool
	failed       *wire.Reply // decided by a no
	allReply     *wire.Reply // what WantAll brings, made once
	reducedReply *wire.Reply // and WantReduced
	rootReply    *wire.Reply // and the payload of the root
	parts        [][][]byte
}

// ballot is one rank's vote.
type vote struct {
	waiter  waiter
	payload []byte
	want    int32
	yes     bool
	waiting bool
}

func (r *record) open() bool             { return !r.done }
func (r *record) timerState() *timer     { return &r.timer }
func (r *record) requires(rank int) bool { return !r.call.RootOnly || rank == r.call.Root }

// needs reports whether r cannot be decided by a yes without a vote that rank has not cast.
func (r *record) lacks(rank int) bool { return r.requires(rank) && !r.votes[rank].yes }

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

// openRecord makes the record that c casts the first vote for.
func (ch *channel) openRecord(m *Machine, c *wire.Contribution) *record {
	r := &record{ch: ch, seq: c.Seq, born: m.now, votes: ch.spare, call: *c}
	ch.spare = nil
	if r.votes == nil {
		r.votes = make([]vote, len(ch.g.members))
	}
	r.call.Group, r.call.Run, r.call.Reason, r.call.Channel = "", "", "", ch.name
	r.call.Verb, r.call.Type, r.call.Label = m.keep(c.Verb), m.keep(c.Type), m.keep(c.Label)
	for rank, f := range ch.floor {
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

// vote is what one rank's call does to r, open or decided.
func (m *Machine) addVote(r *record, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	b := &r.votes[c.Rank]
	switch {
	case r.done && r.failed == nil && c.No != wire.CodeOK && !Agree(&r.call, c):
		*rep = *failureReply(m.refusal(r, c.Rank, c.No, c.Reason)) // it fails alone: it has called nothing else, and not this
		return true
	case r.done && r.failed == nil && !Agree(&r.call, c):
		m.revoke(r.ch.g, clash(&r.call, c), everyRecord)
		*rep = *r.ch.g.revoked
		return true
	case r.done:
		*rep = *m.replyFor(r, c.Rank, c.Want)
		return true
	}
	if b.waiting { // the same rank asks again: its vote stands, and the newer call gets the answer
		m.answer(&b.waiter, &wire.Reply{Code: wire.CodeConflict, Detail: "this rank asked again"})
	}
	b.waiting, b.want = true, c.Want
	m.register(&b.waiter, t, req, r) // the record has one deadline, the earliest
	if at := m.after(req.Timeout); req.Timeout > 0 && (r.timer.pos == 0 || at < r.timer.at) {
		m.arm(r, at)
	}
	m.count(r, b, c, req.Value)
	return false
}

// count counts a vote for an open record, and decides it if that is the last one needed.
func (m *Machine) count(r *record, b *vote, c *wire.Contribution, payload []byte) {
	g := r.ch.g
	switch {
	case c.No != wire.CodeOK:
		m.decide(r, failureReply(m.refusal(r, c.Rank, c.No, c.Reason)))
	case !Agree(&r.call, c):
		v := clash(&r.call, c)
		v.Waited = m.now - r.born
		m.decide(r, failureReply(v))
		m.revoke(g, v, everyRecord)
	case b.yes: // said before
	default:
		if why := r.malformed(c, payload); why != "" {
			m.decide(r, failureReply(m.refusal(r, c.Rank, wire.CodeInvalid, why)))
			return
		}
		if r.call.Type == "" && c.Type != "" { // the first one did not tell: a clash of types is with this rank
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

// settle decides r if it can be decided now.
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
			Code: wire.CodeTooLarge, By: -1, Waited: m.now - r.born,
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

// hopeless is why r can never succeed: somebody that it needs is gone.
func (r *record) unreachable(m *Machine) *wire.Failure {
	v := &wire.Failure{By: -1, Waited: m.now - r.born}
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

// decide ends r, irrevocably: by no, or by yes if no is nil. Everybody who waits is told.
func (m *Machine) decide(r *record, no *wire.Reply) {
	r.done, r.failed = true, no
	m.disarm(r)
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

func (r *record) forgetPayloads(m *Machine) {
	r.eachPayload(m.account.release)
	for i := range r.votes {
		r.votes[i].payload = nil
	}
	r.ch.bytes -= r.bytes
	r.bytes = 0
}

// refusal is the verdict of a rank's no.
func (m *Machine) refusal(r *record, rank int, code wire.Code, reason string) *wire.Failure {
	v := &wire.Failure{Code: code, By: rank, Reason: strings.Clone(reason), Waited: m.now - r.born}
	v.Missing = slices.DeleteFunc(r.missing(), func(x int) bool { return x == rank })
	v.Doing = m.doing(r.ch.g, v.Missing)
	return v
}

// missing are the ranks whose yes r still needs; if it has them all, those who keep its root waiting.
func (r *record) missing() (ranks []int) {
	for rank := range r.votes {
		if r.lacks(rank) {
			ranks = append(ranks, rank)
		}
	}
	if ranks == nil && slices.Contains(r.ch.blocked, r) {
		return r.ch.slowest()
	}
	return ranks
}

// due is the earliest deadline of those who voted.
func (r *record) due(m *Machine) {
	v := &wire.Failure{Code: wire.CodeTimeout, By: -1, Missing: r.missing(), Waited: m.now - r.born}
	v.Doing, v.Reason = m.doing(r.ch.g, v.Missing), m.sharedCause(r.ch.g, v.Missing)
	m.decide(r, failureReply(v))
}

// drop is the cancel or the deadline of a voter, which decides for all, or its end, after which its vote still counts.
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

func (r *record) doing(w *waiter) (*group, string) {
	return r.ch.g, fmt.Sprintf("%s #%d", Describe(&r.call), r.seq)
}

// clash is the verdict of two ranks that disagree.
func clash(a, b *wire.Contribution) *wire.Failure {
	own := *b
	own.Group, own.Run, own.Reason = "", "", ""
	own.Channel, own.Verb, own.Type, own.Label = a.Channel, strings.Clone(b.Verb), strings.Clone(b.Type), strings.Clone(b.Label)
	return &wire.Failure{Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{*a, own}}
}
