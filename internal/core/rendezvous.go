package core

import (
	"crypto/subtle"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// groupKey names a group: another run of the same name is another group.
type groupKey struct{ name, run string }

// rendezvous is one attempt to form a group: it collects one request of each rank, and ends with
// one result for all of them.
//
// It succeeds when the requests of all ranks wait in it at the same time, and makes a new
// generation. It fails for all when the first deadline of those requests passes, when one of them
// cancels, or when two name different sizes. A failed rendezvous is closed, and the next request
// opens a new one.
//
// A rank whose session ends meanwhile is removed, and the rendezvous goes on: the process may be
// restarted before the deadline. Success means that all ranks were alive, and waiting, at one
// moment: no rank counts that has already given up. Compare the rendezvous of torchrun.
type rendezvous struct {
	key     groupKey
	size    int             // ranks that the group is to have
	from    *group          // shrink: the old group; nil for a group that is created
	joiners map[int]*joiner // by rank
}

// joiner is the request of a rank that waits for the others.
type joiner struct {
	waiter
	rendezvous *rendezvous
	label      string
	info       []byte
	claim      claim
}

// claim identifies the process that asks for a rank, and counts its requests. A process that does
// not learn the result of a join (it timed out, or its connection broke) asks again with the same
// token and a higher try; the new request replaces whatever the earlier one got, membership
// included. The token is secret, so another process cannot take the rank over. The zero claim
// replaces nothing.
type claim struct {
	token []byte
	try   uint64
}

// replaces reports whether a request with claim c takes over what a request with claim earlier got.
// It compares tokens in constant time.
func (c claim) replaces(earlier claim) bool {
	return len(c.token) > 0 && c.try > earlier.try && subtle.ConstantTimeCompare(c.token, earlier.token) == 1
}

const (
	// maxSize bounds a world size.
	maxSize = 1 << 20 // ranks of a group
	// maxToken bounds the token of a claim, in bytes.
	maxToken = 64 // bytes of the token of a claim
)

// join adds the caller to the rendezvous of its group, and opens one if there is none. A join that
// has succeeded, and whose answer was lost with the connection, is answered again.
func (m *Machine) join(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if g, rank := m.joinedBy(t); g != nil { // the answer was lost with the connection
		*rep = *m.joinReply(g, g.local(rank))
		if c.Generation != 0 {
			*rep = *renumbered(rep, rank)
		}
		return true
	}
	if len(req.Claim) > maxToken {
		return refuse(rep, wire.CodeTooLarge, fmt.Sprintf("the token of a claim has %d bytes, the limit is %d", len(req.Claim), maxToken))
	}
	if c.Generation != 0 {
		return m.joinSurvivors(t, req, rep)
	}
	if c.Size < 1 || c.Size > maxSize || c.Rank < 0 || c.Rank >= c.Size {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("rank %d of %d: a group has at most %d ranks, from 0 on", c.Rank, c.Size, maxSize))
	}
	if why := tooLargeMember(len(req.Value), c.Size); why != "" {
		return refuse(rep, wire.CodeTooLarge, why)
	}
	key := groupKey{c.Group, c.Run}
	m.supersede(key, c.Rank, claim{req.Claim, req.Attempt})
	if g := m.live[key]; g != nil && c.Rank < len(g.members) && g.members[c.Rank].gone == wire.CodeOK {
		return m.refuseRank(rep, c.Rank, g.members[c.Rank].label, g.began)
	}
	r := m.forming[key]
	if r == nil {
		key = groupKey{strings.Clone(c.Group), strings.Clone(c.Run)}
		r = &rendezvous{key: key, size: c.Size, joiners: map[int]*joiner{}}
		m.forming[key] = r
	}
	if r.size != c.Size {
		*rep = *m.failSize(r, c)
		return true
	}
	return m.addJoiner(r, t, req, rep)
}

// joinedBy returns the group and the rank that a join call obtained; nil if it failed or waits, or
// the rank has left since.
func (m *Machine) joinedBy(t Ticket) (*group, int) {
	for _, id := range m.sessions[t.Session].memberships {
		if id.g.members[id.rank].join == t.ID {
			return id.g, id.rank
		}
	}
	return nil, 0
}

// supersede removes what an earlier try of the same process holds: its rank in the active group,
// which it leaves, or its request in a rendezvous.
func (m *Machine) supersede(key groupKey, rank int, c claim) {
	if g := m.live[key]; g != nil && rank < len(g.members) && g.members[rank].gone == wire.CodeOK && c.replaces(g.members[rank].claim) {
		m.removeMembers(g, rank)
	}
	if r := m.forming[key]; r != nil {
		m.supersedeIn(r, rank, c)
	}
}

// supersedeIn removes the request of an earlier try from r.
func (m *Machine) supersedeIn(r *rendezvous, rank int, c claim) {
	if a := r.joiners[rank]; a != nil && c.replaces(a.claim) {
		m.answer(&a.waiter, &wire.Reply{Code: wire.CodeConflict, Detail: "superseded by a later request of the same process"})
		m.removeJoiner(a)
	}
}

// joinSurvivors adds the caller to the rendezvous of its group's survivors (shrink). That one
// completes when all members that are present have called: it needs no size, as members that fail
// meanwhile are not waited for.
func (m *Machine) joinSurvivors(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	g, _ := m.memberOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	if why := tooLargeMember(len(req.Value), len(g.members)); why != "" {
		return refuse(rep, wire.CodeTooLarge, why)
	}
	if g.shrink != nil {
		// This closes g.shrink if no other rank is in it.
		m.supersedeIn(g.shrink, req.Group.Rank, claim{req.Claim, req.Attempt})
	}
	if g.shrink == nil {
		g.shrink = &rendezvous{key: g.key, size: len(g.members), from: g, joiners: map[int]*joiner{}}
	}
	return m.addJoiner(g.shrink, t, req, rep)
}

// addJoiner adds the caller to r, and forms the group if r is complete then.
func (m *Machine) addJoiner(r *rendezvous, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if a := r.joiners[c.Rank]; a != nil {
		return m.refuseRank(rep, c.Rank, a.label, a.since)
	}
	a := &joiner{rendezvous: r, label: strings.Clone(c.Label), info: req.Value, claim: claim{slices.Clone(req.Claim), req.Attempt}}
	m.park(&a.waiter, t, req, a)
	r.joiners[c.Rank] = a
	m.formIfComplete(r)
	return false
}

// refuseRank refuses a rank that another process has had since a time.
func (m *Machine) refuseRank(rep *wire.Reply, rank int, label string, joined Time) bool {
	const advice = "each process needs a rank of its own, and each run a name of its own (MUSTER_RUN)"
	return refuse(rep, wire.CodeConflict, fmt.Sprintf("rank %d is already in use by %s, which joined %s ago: %s", rank, label, m.since(joined), advice))
}

// failSize fails r because c has another world size. It returns the failure, which the caller gets
// too.
func (m *Machine) failSize(r *rendezvous, c *wire.Contribution) *wire.Reply {
	first := r.inOrder()[0]
	return m.failRendezvous(r, &wire.Failure{
		Code: wire.CodeMismatch, By: -1,
		Reason: fmt.Sprintf("rank %d (%s) has a world size of %d, rank %d (%s) has %d", first.rank, first.label, r.size, c.Rank, c.Label, c.Size),
	})
}

// failRendezvous ends r as a failure: all ranks that wait in it get the same reply, which it
// returns.
func (m *Machine) failRendezvous(r *rendezvous, v *wire.Failure) *wire.Reply {
	m.noteRendezvous(r, v)
	rep := failureReply(v)
	for _, a := range r.inOrder() {
		m.answer(&a.waiter, rep)
	}
	m.closeRendezvous(r)
	return rep
}

// closeRendezvous removes r: the next request opens a new one.
func (m *Machine) closeRendezvous(r *rendezvous) {
	if r.from != nil {
		r.from.shrink = nil
		return
	}
	delete(m.forming, r.key)
}

// inOrder lists the requests by rank: maps have no order, and a replay needs one.
func (r *rendezvous) inOrder() []*joiner {
	as := make([]*joiner, 0, len(r.joiners))
	for _, rank := range slices.Sorted(maps.Keys(r.joiners)) {
		as = append(as, r.joiners[rank])
	}
	return as
}

// missing returns the ranks that r waits for. It looks at no more ranks than have joined, or are
// named: the size is what one peer has asked for.
func (r *rendezvous) missing() (a missing) {
	for rank := 0; rank < r.size && len(a.ranks) < maxMissing; rank++ {
		if r.joiners[rank] == nil && (r.from == nil || r.from.members[rank].gone == wire.CodeOK) {
			a.add(rank)
		}
	}
	a.count = r.expects() - len(r.joiners)
	return a
}

// expects returns how many ranks r needs.
func (r *rendezvous) expects() int {
	if r.from != nil {
		return r.from.present
	}
	return r.size
}

// complete reports whether all ranks wait in r, by counting alone: it is called for each request.
func (r *rendezvous) complete() bool { return len(r.joiners) == r.expects() }

// formIfComplete makes a group of r if it is complete, and answers all of its ranks. Generations
// grow, so that one that was formed later always has the higher number. Survivors leave the group
// that they were in.
func (m *Machine) formIfComplete(r *rendezvous) {
	if !r.complete() || len(r.joiners) == 0 {
		return
	}
	m.closeRendezvous(r)
	as := r.inOrder()
	m.generation++
	g := &group{
		key: r.key, gen: m.generation, members: make([]member, len(as)), infos: make([][]byte, len(as)), present: len(as), began: m.now,
		channels: map[string]*channel{}, tags: map[string]*streams{},
	}
	for i, a := range as {
		g.members[i], g.infos[i] = member{session: a.Session, join: a.ID, label: a.label, at: m.now, claim: a.claim}, a.info
		s := m.sessions[a.Session]
		s.memberships = append(s.memberships, membership{g, i})
	}
	m.groups[g.gen] = g
	m.chargeGroup(g)
	m.byGeneration.add(g)
	m.live[g.key] = g
	replies := map[uint64]*wire.Reply{}
	for node, local := range g.summarize() {
		replies[node] = m.joinReply(g, local)
	}
	var survivors []int
	for rank, a := range as {
		rep := replies[g.node(rank)]
		if r.from != nil {
			rep = renumbered(rep, rank)
			survivors = append(survivors, a.rank)
		}
		m.answer(&a.waiter, rep)
	}
	if r.from != nil {
		m.removeMembers(r.from, survivors...)
	}
}

// removeJoiner removes a request from its rendezvous, without an answer.
func (m *Machine) removeJoiner(a *joiner) {
	delete(a.rendezvous.joiners, a.rank)
	if len(a.rendezvous.joiners) == 0 {
		m.closeRendezvous(a.rendezvous)
	}
}

// drop fails the rendezvous for all ranks when the deadline of one passes, or its caller cancels.
// The end of a session, or of a membership, removes that request alone.
func (a *joiner) drop(m *Machine, w *waiter, why wire.Code) {
	switch {
	case sessionEnded(why):
		m.removeJoiner(a)
		m.unregister(w)
		return
	case why == wire.CodeClosed: // the rank has left the group whose survivors these are
		m.removeJoiner(a)
		m.answer(w, &wire.Reply{Code: why})
		return
	}
	r := a.rendezvous
	v := &wire.Failure{Code: why, By: -1, Waited: m.now - r.since()}
	if why == wire.CodeCancelled {
		v.By, v.Reason = a.rank, m.cancelReason
	}
	if g := m.live[r.key]; g != nil && r.from == nil && v.Reason == "" {
		v.Reason = fmt.Sprintf("generation %d of this group is still live", g.gen)
	}
	m.addMissing(v, r.from, 0, r.missing())
	m.failRendezvous(r, v)
}

// since returns when the first request came.
func (r *rendezvous) since() Time {
	first := Time(math.MaxInt64)
	for _, a := range r.joiners {
		first = min(first, a.since)
	}
	return first
}

// doing implements owner.
func (a *joiner) doing(*waiter) (*group, string) {
	if a.rendezvous.from != nil {
		return a.rendezvous.from, "shrink"
	}
	return nil, ""
}
