package core

import (
	"cmp"
	"crypto/subtle"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// rollKey names a group: another run of the same name is another group.
type groupKey struct{ name, run string }

// roll is one attempt to form a group: at most one request of each rank, and one outcome for all of them. It succeeds
// when every rank is in it at the same time, and makes a generation. It fails when the first deadline of those
// present passes, when one of them cancels, or when two name different sizes; later ranks open the next attempt.
// A rank whose session ends meanwhile is taken out, and the attempt goes on: the rank may be started again in time.
type rendezvous struct {
	key     groupKey
	size    int
	from    *group // whose survivors these are; nil for a group of its own
	joiners map[int]*joiner
}

// applicant is the request of a rank that waits for the others.
type joiner struct {
	waiter
	rendezvous *rendezvous
	label      string
	info       []byte
	claim      claim
}

// claim says which process asks for a rank, and how often it has asked. Only the process knows its token. A request
// with the same token and a higher try is a retry whose earlier outcome the process never learned: it replaces what
// the earlier one holds. The zero claim replaces nothing.
type claim struct {
	token []byte
	try   uint64
}

// replaces reports whether a request with claim c takes over what earlier holds.
func (c claim) replaces(earlier claim) bool {
	return len(c.token) > 0 && c.try > earlier.try && subtle.ConstantTimeCompare(c.token, earlier.token) == 1
}

const (
	// maxSize bounds a world size.
	maxSize = 1 << 20
	// maxToken bounds the token of a claim, in bytes.
	maxToken = 64
)

func (m *Machine) join(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if g, _ := m.joinedBy(t); g != nil { // the answer was lost with the connection
		*rep = *g.joinReply()
		return true
	}
	if len(req.Old) > maxToken {
		return refuse(rep, wire.CodeTooLarge, fmt.Sprintf("the token of a claim has %d bytes, the limit is %d", len(req.Old), maxToken))
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
	m.supersede(key, c.Rank, claim{req.Old, req.Rev})
	if g := m.live[key]; g != nil && c.Rank < len(g.members) && g.members[c.Rank].gone == wire.CodeOK {
		return refuse(rep, wire.CodeConflict, fmt.Sprintf("rank %d is held by %s, in generation %d", c.Rank, g.members[c.Rank].label, g.gen))
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

// joinedBy is the group in which a Join obtained membership, and the rank there; nil if it did not, or the rank has left since.
func (m *Machine) joinedBy(t Ticket) (*group, int) {
	for _, id := range m.sessions[t.Session].memberships {
		if id.g.members[id.rank].join == t.ID {
			return id.g, id.rank
		}
	}
	return nil, 0
}

// supersede takes out what an earlier try of the same process holds: a rank of the live group, which leaves, or a request.
func (m *Machine) supersede(key groupKey, rank int, c claim) {
	if g := m.live[key]; g != nil && rank < len(g.members) && g.members[rank].gone == wire.CodeOK && c.replaces(g.members[rank].claim) {
		m.removeMember(g, rank)
	}
	if r := m.forming[key]; r != nil {
		m.supersedeIn(r, rank, c)
	}
}

func (m *Machine) supersedeIn(r *rendezvous, rank int, c claim) {
	if a := r.joiners[rank]; a != nil && c.replaces(a.claim) {
		m.answer(&a.waiter, &wire.Reply{Code: wire.CodeConflict, Detail: "a later request of the same process has taken its place"})
		m.removeJoiner(a)
	}
}

// welcome is what the ranks of g are told of it.
func (g *group) joinReply() *wire.Reply {
	rep := &wire.Reply{Rev: g.gen, Values: make([][]byte, len(g.members))}
	for i := range g.members {
		rep.Values[i] = g.members[i].info
	}
	for _, rank := range g.old {
		rep.Nums = append(rep.Nums, int64(rank))
	}
	return rep
}

// joinSurvivors enters a rank of a group into the roll of those who are left of it.
func (m *Machine) joinSurvivors(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	g, _ := m.memberOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	if why := tooLargeMember(len(req.Value), len(g.members)); why != "" {
		return refuse(rep, wire.CodeTooLarge, why)
	}
	if g.shrink != nil {
		m.supersedeIn(g.shrink, req.Group.Rank, claim{req.Old, req.Rev}) // which closes it, if no other rank is in it
	}
	if g.shrink == nil {
		g.shrink = &rendezvous{key: g.key, size: len(g.members), from: g, joiners: map[int]*joiner{}}
	}
	return m.addJoiner(g.shrink, t, req, rep)
}

// enter puts the caller into r, whose last one completes it.
func (m *Machine) addJoiner(r *rendezvous, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if a := r.joiners[c.Rank]; a != nil {
		return refuse(rep, wire.CodeConflict, fmt.Sprintf("rank %d is held by %s, who waits for the others", c.Rank, a.label))
	}
	a := &joiner{rendezvous: r, label: strings.Clone(c.Label), info: req.Value, claim: claim{slices.Clone(req.Old), req.Rev}}
	m.park(&a.waiter, t, req, a)
	r.joiners[c.Rank] = a
	m.formIfComplete(r)
	return false
}

// disagree fails r, because c came with another world size. The caller gets the same result.
func (m *Machine) failSize(r *rendezvous, c *wire.Contribution) *wire.Reply {
	first := r.inOrder()[0]
	return m.failRendezvous(r, &wire.Failure{
		Code: wire.CodeMismatch, By: -1,
		Reason: fmt.Sprintf("rank %d (%s) has a world size of %d, rank %d (%s) has %d", first.rank, first.label, r.size, c.Rank, c.Label, c.Size),
	})
}

// fail ends the attempt r: all ranks in it get the same result, which is returned.
func (m *Machine) failRendezvous(r *rendezvous, v *wire.Failure) *wire.Reply {
	m.noteRendezvous(r, v)
	rep := failureReply(v)
	for _, a := range r.inOrder() {
		m.answer(&a.waiter, rep)
	}
	m.closeRendezvous(r)
	return rep
}

func (m *Machine) closeRendezvous(r *rendezvous) {
	if r.from != nil {
		r.from.shrink = nil
		return
	}
	delete(m.forming, r.key)
}

func (r *rendezvous) inOrder() []*joiner {
	as := slices.Collect(maps.Values(r.joiners))
	slices.SortFunc(as, func(a, b *joiner) int { return cmp.Compare(a.rank, b.rank) })
	return as
}

// missing are the ranks that r still needs.
func (r *rendezvous) missing() (ranks []int) {
	for rank := range r.size {
		if r.joiners[rank] == nil && (r.from == nil || r.from.members[rank].gone == wire.CodeOK) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// complete reports whether everybody is there, without a look at each rank.
func (r *rendezvous) complete() bool {
	if r.from != nil {
		return len(r.joiners) == r.from.present
	}
	return len(r.joiners) == r.size
}

// completeRoll makes a group of r, if everybody is there, and tells them.
func (m *Machine) formIfComplete(r *rendezvous) {
	if !r.complete() || len(r.joiners) == 0 {
		return
	}
	m.closeRendezvous(r)
	as := r.inOrder()
	m.generation++
	g := &group{
		key: r.key, gen: m.generation, members: make([]member, len(as)), present: len(as), born: m.now,
		channels: map[string]*channel{}, tags: map[string]*streams{},
	}
	for i, a := range as {
		g.members[i] = member{session: a.Session, join: a.ID, label: a.label, info: a.info, at: m.now, claim: a.claim}
		s := m.sessions[a.Session]
		s.memberships = append(s.memberships, membership{g, i})
		if r.from != nil {
			g.old = append(g.old, a.rank)
		}
	}
	m.groups[g.gen] = g
	m.chargeGroup(g)
	m.byGeneration.add(g)
	m.live[g.key] = g
	rep := g.joinReply()
	for _, a := range as {
		m.answer(&a.waiter, rep)
	}
	if r.from != nil {
		m.removeAll(r.from)
	}
}

// retire ends a generation whose survivors have a new one.
func (m *Machine) removeAll(g *group) {
	for rank := range g.members {
		if g.members[rank].gone == wire.CodeOK {
			m.removeMember(g, rank)
		}
	}
}

// withdraw takes a request out of its attempt, unanswered.
func (m *Machine) removeJoiner(a *joiner) {
	delete(a.rendezvous.joiners, a.rank)
	if len(a.rendezvous.joiners) == 0 {
		m.closeRendezvous(a.rendezvous)
	}
}

// drop fails the attempt for all when one rank's deadline passes or its caller cancels. The end of a session takes out that request alone.
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
	v := &wire.Failure{Code: why, By: -1, Missing: r.missing(), Waited: m.now - r.since()}
	if why == wire.CodeCancelled {
		v.By, v.Reason = a.rank, m.cancelReason
	}
	if g := m.live[r.key]; g != nil && r.from == nil && v.Reason == "" {
		v.Reason = fmt.Sprintf("generation %d of this group is still live", g.gen)
	}
	if r.from != nil {
		v.Doing = m.doing(r.from, v.Missing)
	}
	m.failRendezvous(r, v)
}

// since is when the first of those present came.
func (r *rendezvous) since() Time {
	first := Time(math.MaxInt64)
	for _, a := range r.joiners {
		first = min(first, a.since)
	}
	return first
}

func (a *joiner) doing(*waiter) (*group, string) {
	if a.rendezvous.from != nil {
		return a.rendezvous.from, "shrink"
	}
	return nil, ""
}
