package core_test

import (
	"math"
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// channel is one use of a channel's name, with its records that are not freed yet.
type channel struct {
	g       *group
	name    string
	use     int      // how many uses of the name came before
	used    []bool   // by rank
	closed  []bool   // by rank
	floor   []uint64 // by rank: the highest sequence number that it has gone beyond
	records []*record
}

// record is the state of one group verb: the votes for it and its outcome.
type record struct {
	ch       *channel
	seq      uint64
	call     wire.Contribution // the verb, as the first vote gave it
	yes      []*vote           // by rank: its first yes vote
	no       *vote             // the first no vote, or a cancel
	clash    *vote             // the first vote for another verb, before the decision
	deadline core.Time         // the earliest of all votes; 0 means none
	asker    []*call           // by rank: its last call
	began    core.Time         // when the first vote came
	stall    core.Time         // the least of all votes; 0 means none
	stalled  bool              // the server has said so

	done, ok bool // as the machine reports it
	// the rule that decided it, if that was within a step, before the vote of that step
	why     string
	ended   bool // l1Decides has checked why
	endedAt core.Time
	freed   bool
	canon   []byte // the first outcome that was delivered, encoded
}

// vote is the vote of one rank, with the kind that it had when it arrived.
type vote struct {
	rank    int
	step    int
	c       *wire.Contribution
	payload []byte
	parts   [][]byte
	kind    voteKind
}

type voteKind int

const (
	yes voteKind = iota
	repeated
	said      // no
	absurd    // an invalid yes
	cancelled // a cancel after a yes
	other     // for another verb
	late      // after the decision
	lateOther // after the decision, and for another verb
)

// channel returns the first use of a name that rank has not closed. By this rule the machine
// assigns a vote to a channel.
func (g *group) channel(name string, rank int) *channel {
	for _, ch := range g.channels {
		if ch.name == name && !ch.closed[rank] {
			return ch
		}
	}
	n := len(g.members)
	ch := &channel{g: g, name: name, use: g.uses[name], used: make([]bool, n), closed: make([]bool, n), floor: make([]uint64, n)}
	g.uses[name]++
	g.channels = append(g.channels, ch)
	return ch
}

// before counts the channels with ch's name that exist and began before ch.
func (ch *channel) before(a *audit) (n int) {
	for _, x := range ch.g.channels {
		if x == ch {
			break
		}
		if x.name == ch.name && !x.over(a) {
			n++
		}
	}
	return n
}

// over reports whether ch must be freed: its users have closed it, and every record is decided and
// no longer needed by any rank.
func (ch *channel) over(a *audit) bool {
	for rank, used := range ch.used {
		if used && !ch.closed[rank] && ch.g.members[rank].gone == wire.CodeOK {
			return false
		}
	}
	return !slices.ContainsFunc(ch.records, func(r *record) bool { return !r.passed() || !r.done && r.mustEnd(a) == "" })
}

// closes handles a rank that closes a channel. A rank closes only channels that it has used.
func (a *audit) closes(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	cl.group = g
	c := &cl.req.Group
	i := slices.IndexFunc(g.channels, func(ch *channel) bool { return ch.name == c.Channel && !ch.closed[c.Rank] })
	if i >= 0 && g.channels[i].used[c.Rank] {
		ch := g.channels[i]
		ch.closed[c.Rank], ch.floor[c.Rank] = true, math.MaxUint64
		ch.goOn(a)
		a.w.tally["channels closed by a rank"]++
	}
	for _, st := range g.streamCount {
		if st.tag == c.Channel {
			st.closes(c.Rank)
		}
	}
}

// c9FreedWithItsLastUser checks C9: a channel or stream exists as long as a present rank that has
// used it has not closed it, or a rank may still need its contents; and no longer.
func c9FreedWithItsLastUser(a *audit, g *group) {
	g.channels = slices.DeleteFunc(g.channels, func(ch *channel) bool {
		over := ch.over(a)
		if over {
			a.w.tally["channels freed"]++
		}
		return over
	})
	g.streamCount = slices.DeleteFunc(g.streamCount, (*stream).over)
	if channels, streams := a.w.m.Opened(g.gen); channels != len(g.channels) || streams != len(g.streamCount) {
		breaks("C9 a channel is freed with its last user", "generation %d has %d channels and %d streams, and needs %d and %d", g.gen, channels, streams, len(g.channels), len(g.streamCount))
	}
}

// c9NoCallOnWhatIsClosed checks C9: after a rank has closed a channel, no call of that rank waits
// there.
func c9NoCallOnWhatIsClosed(cl *call) {
	rank := cl.req.Group.Rank
	if r := cl.record; r != nil && r.ch.closed[rank] || cl.stream != nil && cl.stream.closedBy(rank) {
		breaks("C9 a closed channel has no calls", "%s waits", cl)
	}
}

func (ch *channel) record(seq uint64) *record {
	for _, r := range ch.records {
		if r.seq == seq {
			return r
		}
	}
	return nil
}

// passed reports whether every present rank has passed r.
func (r *record) passed() bool {
	for rank, f := range r.ch.floor {
		if f < r.seq && r.ch.g.members[rank].gone == wire.CodeOK {
			return false
		}
	}
	return true
}

func (r *record) requires(rank int) bool { return !r.call.RootOnly || rank == r.call.Root }

// votes handles a vote that arrives.
func (a *audit) votes(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	c := &cl.req.Group
	cl.group = g
	ch := g.channel(c.Channel, c.Rank)
	ch.used[c.Rank] = true
	if c.Seq <= ch.floor[c.Rank] {
		cl.refusal = wire.CodeStale
		a.w.tally["passed votes"]++
		return
	}
	if p := g.members[c.Rank].progress; p != nil {
		p.at = a.now
	}
	ch.floor[c.Rank] = c.Seq - 1
	ch.goOn(a)
	r := ch.record(c.Seq)
	if r == nil {
		if g.revocation != nil {
			return // cl.record stays nil: the answer is the reason of the revocation
		}
		if len(ch.records) >= a.w.bounds.Window {
			g.revoke(a, wire.CodeFull, -1)
			return
		}
		n := len(g.members)
		r = &record{ch: ch, seq: c.Seq, call: *c, began: a.now, yes: make([]*vote, n), asker: make([]*call, n)}
		ch.records = append(ch.records, r)
		for i := range g.members {
			if p := g.members[i].progress; p != nil {
				p.changes = 0
			}
		}
	}
	v := &vote{rank: c.Rank, step: a.step, c: c, payload: cl.req.Value}
	v.kind = r.judge(v)
	r.count(a, v, cl)
}

// goOn records what is decided and freed because a rank goes on to a later record, before its vote
// counts. A freed record makes space for a root, whose record may be freed in turn.
func (ch *channel) goOn(a *audit) {
	for again := true; again; {
		again = false
		ch.records = slices.DeleteFunc(ch.records, func(r *record) bool { return r.done && r.passed() })
		for _, r := range ch.records {
			if why := r.mustEnd(a); why != "" && !r.done {
				r.done, r.ok, r.why = true, why == allYesDecide, why
				again = true
			}
		}
	}
}

// judge classifies a vote for r.
func (r *record) judge(v *vote) voteKind {
	switch {
	case r.done && r.ok && !agree(&r.call, v.c):
		return lateOther
	case r.done:
		return late
	case v.c.No != wire.CodeOK:
		return said
	case !agree(&r.call, v.c):
		return other
	case r.yes[v.rank] != nil:
		return repeated
	case !r.sensible(v):
		return absurd
	}
	return yes
}

// count records a vote.
func (r *record) count(a *audit, v *vote, cl *call) {
	cl.record, cl.vote = r, v
	r.ch.g.votes = append(r.ch.g.votes, v.c)
	r.asker[v.rank] = cl
	if !r.done && cl.timeout > 0 {
		if at := a.now + cl.timeout; r.deadline == 0 || at < r.deadline {
			r.deadline = at
		}
	}
	if s := v.c.Stall; !r.done && s > 0 && (r.stall == 0 || s < r.stall) {
		r.stall = s
	}
	switch v.kind {
	case yes:
		r.yes[v.rank] = v
		if r.call.Type == "" {
			r.call.Type = v.c.Type
		}
	case said, absurd:
		r.no = v
	case other:
		r.clash = v
		r.ch.g.revoke(a, wire.CodeMismatch, v.rank)
	case lateOther:
		if v.c.No == wire.CodeOK {
			r.ch.g.revoke(a, wire.CodeMismatch, v.rank)
		}
		a.w.tally["late mismatches"]++
	case repeated:
		a.w.tally["repeated votes"]++
	}
}

// agree reports whether two votes are for the same verb.
func agree(a, b *wire.Contribution) bool {
	if a.Type != b.Type && a.Type != "" && b.Type != "" {
		return false
	}
	return a.Verb == b.Verb && a.Root == b.Root && a.RootOnly == b.RootOnly && a.Label == b.Label && a.Reduction == b.Reduction &&
		(a.Want == wire.WantPart) == (b.Want == wire.WantPart)
}

// sensible reports whether a yes vote is valid.
func (r *record) sensible(v *vote) bool {
	c, n := v.c, len(r.yes)
	if c.Root < -1 || c.Root >= n || c.RootOnly && c.Root < 0 || int(c.Want) >= n || c.Want < wire.WantReduced {
		return false
	}
	if c.Want == wire.WantPart && (!c.RootOnly || c.Root == v.rank) {
		parts, err := wire.ParseParts(v.payload, n)
		v.parts = parts
		return err == nil && len(parts) == n
	}
	if c.Want == wire.WantReduced || c.Reduction != (wire.Reduction{}) {
		return len(v.payload) == 16 && !c.RootOnly // two numbers in these tests
	}
	return true
}

// allYes reports whether every rank that r needs has voted yes.
func (r *record) allYes() bool {
	for rank, v := range r.yes {
		if r.requires(rank) && v == nil {
			return false
		}
	}
	return true
}

// held reports whether a root has to wait for space: too many records before r are not freed, or
// they hold too many bytes.
func (r *record) held(a *audit) bool {
	if !r.call.RootOnly {
		return false
	}
	before, bytes := 0, 0
	for _, x := range r.ch.records {
		if x.seq < r.seq {
			if x.done && x.passed() { // it is freed in this step
				continue
			}
			before++
		}
		if x.seq > r.seq || x.done && !x.ok {
			continue
		}
		for _, v := range x.yes {
			if v != nil {
				bytes += len(v.payload)
			}
		}
	}
	return before >= a.w.bounds.AheadRecords || before > 0 && bytes > a.w.bounds.AheadBytes
}

const allYesDecide = "L1 all yes decide"

// mustEnd returns the property that requires r to be decided by now, or "" if r has to wait.
func (r *record) mustEnd(a *audit) string {
	g := r.ch.g
	switch {
	case r.no != nil:
		return "L1 the first no decides"
	case r.clash != nil:
		return "L1 a mismatch decides"
	case r.deadline > 0 && r.deadline <= a.now:
		return "L2 a finite deadline decides"
	case r.stalled:
		return "T2 a stall decides"
	case g.all:
		return "L1 a revocation decides all"
	case r.allYes() && !r.held(a):
		return allYesDecide
	}
	for rank := range r.yes {
		if !r.requires(rank) || r.yes[rank] != nil {
			continue
		}
		switch {
		case g.members[rank].gone != wire.CodeOK:
			return "L3 a lost elector decides"
		case r.ch.floor[rank] >= r.seq:
			return "L3 an elector that went on decides"
		}
	}
	return ""
}

// settleChannel checks every record of ch after a step.
func (a *audit) settleChannel(ch *channel) {
	over, before := ch.over(a), ch.before(a)
	for _, r := range ch.records {
		state, there := a.w.m.Record(ch.g.gen, ch.name, before, r.seq)
		there = there && !over // a record that is found now belongs to the next use of the name
		if r.freed = !there; r.freed {
			c8FreedWhenPassed(a, r)
			r.done = true
			continue
		}
		c4DecidedStays(r, state)
		c5VotesCount(r, state)
		r.done, r.ok = state.Done, state.Done && !state.Failed
	}
	ch.records = slices.DeleteFunc(ch.records, func(r *record) bool { return r.freed })
	for _, r := range ch.records {
		l1Decides(a, r)
		l5FreedWhenPassed(r)
	}
	if !over {
		c8NothingElse(a, ch, before)
	}
}

// decided checks the answer to a vote.
func (a *audit) decided(cl *call, rep *wire.Reply) {
	r := cl.record
	if r == nil {
		g4RevokedForCause(cl.group, cl, rep)
		return
	}
	if rep.Code != wire.CodeOK && rep.Failure == nil {
		c1Refusals(r, cl, rep)
		return
	}
	if cl.vote.kind == lateOther {
		c1LateMismatch(cl, rep)
		return
	}
	c1SameOutcome(r, cl, rep)
	if rep.Code == wire.CodeOK {
		a.w.tally["successes received"]++
		c7OwnPayloads(r, cl, rep)
	} else {
		a.w.tally["failures: "+rep.Code.String()]++
		c3FailureNames(a, r, rep.Failure)
	}
}
