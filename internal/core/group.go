package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/wire"
)

// group is one generation of a group: it exists from the moment at which all ranks were there until the last one is gone.
type group struct {
	key          groupKey
	gen          uint64
	members      []member // by rank
	present      int      // seats that are not gone
	revoked      *wire.Reply
	channels     map[string]*channel // the first of each name
	channelCount int                 // of all names
	tags         map[string]*streams
	streamCount  int // of all tags
	follows      []*follow
	shrink       *rendezvous // of its survivors, once one of them has called
	old          []int       // of a group of survivors: the rank that each had
	born         Time
	revocation   pastFailure   // since it is revoked
	failures     []pastFailure // the last ones, the oldest first
}

// seat is a rank's place in a generation. Only calls of its session count.
type member struct {
	session uint64
	join    uint64 // the call that took it
	label   string
	info    []byte
	gone    wire.Code // CodeOK, CodeLost or CodeLeft
	verb    string    // of its last call
	seq     uint64
	at      Time
	expired int // messages that nobody fetched in time, since it last asked
	claim   claim
}

// seatOf finds the seat that c speaks for; nil, and why in rep, if it is not the caller's. A session that has no seat in a generation
// gets the answer that it gets if there is no such generation: its members, and that it exists, are known to its own sessions alone.
func (m *Machine) memberOf(t Ticket, c *wire.Contribution, rep *wire.Reply) (*group, *member) {
	g := m.groups[c.Generation]
	m.noop = true
	if g == nil || !g.hasSession(t.Session, c.Rank) {
		refuse(rep, wire.CodeStale, fmt.Sprintf("generation %d is over, or never was this session's", c.Generation))
		return nil, nil
	}
	if c.Rank < 0 || c.Rank >= len(g.members) {
		refuse(rep, wire.CodeInvalid, fmt.Sprintf("rank %d of %d", c.Rank, len(g.members)))
		return nil, nil
	}
	s := &g.members[c.Rank]
	switch {
	case s.session != t.Session:
		refuse(rep, wire.CodeDenied, fmt.Sprintf("rank %d of generation %d is another session's", c.Rank, g.gen))
	case s.gone != wire.CodeOK:
		refuse(rep, wire.CodeClosed, fmt.Sprintf("rank %d is no longer in generation %d", c.Rank, g.gen))
	default:
		m.noop = false
		return g, s
	}
	return nil, nil
}

// has reports whether a session has, or had, a seat in g: likely that of rank.
func (g *group) hasSession(session uint64, rank int) bool {
	if rank >= 0 && rank < len(g.members) && g.members[rank].session == session {
		return true
	}
	return slices.ContainsFunc(g.members, func(s member) bool { return s.session == session })
}

// called notes what a rank does, for the errors of those who wait for it.
func (s *member) noteCall(m *Machine, verb string, seq uint64) {
	s.verb, s.seq, s.at = m.keep(verb), seq, m.now
}

// leave takes a rank out of its group, or aborts the group.
func (m *Machine) leave(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, _ := m.memberOf(t, c, rep)
	if g == nil {
		return true
	}
	if c.No != wire.CodeOK {
		m.revoke(g, &wire.Failure{Code: wire.CodeAborted, By: c.Rank, Reason: strings.Clone(c.Reason)}, everyRecord)
		return true
	}
	m.removeMember(g, c.Rank)
	return true
}

// vacate takes a rank that is there out of its group, with its waiting calls: it has left.
func (m *Machine) removeMember(g *group, rank int) {
	s := m.sessions[g.members[rank].session]
	m.dropAll(s, wire.CodeClosed, func(w *waiter) bool { return w.belongsTo(g, rank) })
	s.memberships = slices.DeleteFunc(s.memberships, func(id membership) bool { return id == membership{g, rank} })
	m.fence(g, wire.CodeLeft, "", rank)
}

// fence makes ranks gone: no vote of them counts any more, nobody waits for them, and what only they still
// needed is freed. If they are lost the generation is revoked, for why, or the name of the first; a vote that one has cast stands.
func (m *Machine) fence(g *group, how wire.Code, why string, ranks ...int) {
	ranks = slices.DeleteFunc(ranks, func(rank int) bool { return g.members[rank].gone != wire.CodeOK })
	if len(ranks) == 0 {
		return
	}
	for _, rank := range ranks {
		g.members[rank].gone = how
		g.present--
	}
	v := &wire.Failure{Code: how, By: -1}
	needed := func(r *record) bool { return slices.ContainsFunc(ranks, r.lacks) }
	if how == wire.CodeLost {
		v.Lost, v.Reason = ranks, cmp.Or(why, g.members[ranks[0]].label)
		m.revoke(g, v, needed)
	} else {
		v.Left = ranks
		m.decideAll(g, v, needed)
	}
	for _, rank := range ranks {
		for _, ch := range g.inOrder() {
			ch.fence(m, rank)
		}
		for _, of := range g.tagsInOrder() {
			of.fence(m, rank)
		}
	}
	if g.shrink != nil {
		m.formIfComplete(g.shrink)
	}
	if g.present == 0 {
		m.drop(g)
	}
}

// drop takes out a group that has no ranks any more, once: a fence may complete a shrink, which drops the group within the fence.
func (m *Machine) drop(g *group) {
	if m.groups[g.gen] == nil {
		return
	}
	delete(m.groups, g.gen)
	m.releaseGroup(g)
	m.byGeneration.remove(g)
	m.addEndedGroup(g.ended(m.now))
	if m.live[g.key] == g {
		delete(m.live, g.key)
	}
	for _, st := range g.streamsInOrder() {
		m.disarm(st)
	}
	for _, ch := range g.inOrder() {
		for _, r := range ch.records {
			m.disarm(r)
		}
	}
	for _, f := range g.follows {
		m.unregister(&f.waiter)
	}
}

func everyRecord(*record) bool { return true }

// revoke ends a generation: open records that which says are decided by v, and so is everything that comes later.
func (m *Machine) revoke(g *group, v *wire.Failure, which func(*record) bool) {
	if g.revoked == nil {
		g.revoked = failureReply(v)
		g.revocation = m.newPastFailure("", "", 0, v)
		for _, f := range g.follows {
			m.answer(&f.waiter, g.revoked)
		}
		g.follows = nil
		m.revokeStreams(g)
	}
	m.decideAll(g, v, which)
}

// decideAll decides the open records that which says, in order, by v.
func (m *Machine) decideAll(g *group, v *wire.Failure, which func(*record) bool) {
	for _, ch := range g.inOrder() {
		for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
			if r := ch.records[seq]; r != nil && r.open() && which(r) {
				own := *v
				own.Waited = m.now - r.born
				if len(v.Lost) > 1 { // a vote that is cast stands: a record names those alone that it needed
					own.Lost = slices.DeleteFunc(slices.Clone(v.Lost), func(rank int) bool { return !r.lacks(rank) })
				}
				m.decide(r, failureReply(&own))
			}
		}
	}
}

// failed is the reply that a verdict makes, one for all.
func failureReply(v *wire.Failure) *wire.Reply { return &wire.Reply{Code: v.Code, Failure: v} }

// follow waits until its group is revoked.
type follow struct {
	waiter
	g *group
}

func (m *Machine) follow(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	g, _ := m.memberOf(t, &req.Group, rep)
	switch {
	case g == nil:
		return true
	case g.revoked != nil:
		*rep = *g.revoked
		return true
	}
	f := &follow{g: g}
	m.park(&f.waiter, t, req, f)
	g.follows = append(g.follows, f)
	return false
}

func (f *follow) drop(m *Machine, w *waiter, why wire.Code) {
	f.g.follows = slices.DeleteFunc(f.g.follows, func(x *follow) bool { return x == f })
	if sessionEnded(why) {
		m.unregister(w)
		return
	}
	m.answer(w, &wire.Reply{Code: why})
}

func (f *follow) doing(*waiter) (*group, string) { return f.g, "" }

// mostDoing bounds how many missing ranks an error describes; the others are only named.
const maxDoing = 16

// doing says what ranks do instead of what is asked of them.
func (m *Machine) doing(g *group, ranks []int) (what []string) {
	for _, r := range ranks[:min(len(ranks), maxDoing)] {
		what = append(what, m.doingOf(g, r))
	}
	return what
}

func (m *Machine) doingOf(g *group, rank int) string {
	s := &g.members[rank]
	switch s.gone {
	case wire.CodeLost:
		return "lost"
	case wire.CodeLeft:
		return "left"
	}
	elsewhere := ""
	for _, w := range m.sessions[s.session].inOrder() {
		of, what := w.owner.doing(w)
		switch {
		case of == nil || what == "":
		case of == g && w.rank == rank:
			return fmt.Sprintf("in %s for %s", what, m.since(w.since))
		case of != g && of.members[w.rank].label == s.label && s.session != Local:
			elsewhere = fmt.Sprintf("in %s of group %q for %s", what, of.key.name, m.since(w.since))
		}
	}
	switch {
	case elsewhere != "":
		return elsewhere
	case s.verb == "":
		return fmt.Sprintf("no call since it joined %s ago", m.since(g.born))
	case s.seq == 0:
		return fmt.Sprintf("in no call; its last was %s, %s ago", s.verb, m.since(s.at))
	}
	return fmt.Sprintf("in no call; its last was %s #%d, %s ago", s.verb, s.seq, m.since(s.at))
}

// cutOff says what took the connections of several of ranks, who may still be back: one relay that is late does not look like so many ranks.
func (m *Machine) sharedCause(g *group, ranks []int) string {
	whys, of := []string{}, map[string]int{}
	for _, r := range ranks {
		s := m.sessions[g.members[r].session]
		if s == nil || s.sharedCause == "" {
			continue
		}
		if of[s.sharedCause]++; of[s.sharedCause] == 1 {
			whys = append(whys, s.sharedCause)
		}
	}
	for i, why := range whys {
		if of[why] < len(ranks) {
			whys[i] = fmt.Sprintf("%d of them: %s", of[why], why)
		}
	}
	return strings.Join(whys, "; ")
}

// since is how long ago at was.
func (m *Machine) since(at Time) time.Duration { return RoundTwoDigits(m.now - at) }
