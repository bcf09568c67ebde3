package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// rollKey names a group: another run of the same name is another group.
type rollKey struct{ name, run string }

// roll is a group that is coming together. It is complete when all ranks are in it at the same time.
type roll struct {
	key        rollKey
	size       int
	from       *group // whose survivors these are; nil for a group of its own
	applicants map[int]*applicant
	noted      bool // that somebody withdrew, since the last one came
}

// applicant is a rank that has joined, and waits for the others.
type applicant struct {
	waiter
	roll   *roll
	label  string
	member []byte
}

// maxSize bounds a world size.
const maxSize = 1 << 20

func (m *Machine) join(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if g := m.joinedBy(t); g != nil {
		*rep = *g.welcome()
		return true
	}
	if c.Generation != 0 {
		return m.joinSurvivors(t, req, rep)
	}
	if c.Size < 1 || c.Size > maxSize || c.Rank < 0 || c.Rank >= c.Size {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("rank %d of %d", c.Rank, c.Size))
	}
	key := rollKey{c.Group, c.Run}
	if g := m.live[key]; g != nil && c.Rank < len(g.seats) && g.seats[c.Rank].gone == wire.CodeOK {
		return refuse(rep, wire.CodeConflict, fmt.Sprintf("rank %d is held by %s, in generation %d", c.Rank, g.seats[c.Rank].label, g.gen))
	}
	r := m.rolls[key]
	if r == nil {
		key = rollKey{strings.Clone(c.Group), strings.Clone(c.Run)}
		r = &roll{key: key, size: c.Size, applicants: map[int]*applicant{}}
		m.rolls[key] = r
	}
	if r.size != c.Size {
		*rep = *m.disagree(r, c)
		return true
	}
	return m.enter(r, t, req, rep)
}

// joinedBy is the group that a call has joined already: its answer may have been lost on its way.
func (m *Machine) joinedBy(t Ticket) *group {
	for _, id := range m.sessions[t.Session].seats {
		if id.g.seats[id.rank].join == t.ID {
			return id.g
		}
	}
	return nil
}

// welcome is what the ranks of g are told of it.
func (g *group) welcome() *wire.Reply {
	rep := &wire.Reply{Rev: g.gen, Values: make([][]byte, len(g.seats))}
	for i := range g.seats {
		rep.Values[i] = g.seats[i].member
	}
	for _, rank := range g.old {
		rep.Nums = append(rep.Nums, int64(rank))
	}
	return rep
}

// joinSurvivors enters a rank of a group into the roll of those who are left of it.
func (m *Machine) joinSurvivors(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	g, _ := m.seatOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	if g.shrink == nil {
		g.shrink = &roll{key: g.key, size: len(g.seats), from: g, applicants: map[int]*applicant{}}
	}
	return m.enter(g.shrink, t, req, rep)
}

// enter puts the caller into r, whose last one completes it.
func (m *Machine) enter(r *roll, t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	if a := r.applicants[c.Rank]; a != nil {
		return refuse(rep, wire.CodeConflict, fmt.Sprintf("rank %d is held by %s, who waits for the others", c.Rank, a.label))
	}
	a := &applicant{roll: r, label: strings.Clone(c.Label), member: req.Value}
	m.park(&a.waiter, t, req, a)
	r.applicants[c.Rank], r.noted = a, false
	m.completeRoll(r)
	return false
}

// disagree ends r, because c came with another world size: everybody in it hears who said what.
func (m *Machine) disagree(r *roll, c *wire.Contribution) *wire.Reply {
	first := r.inOrder()[0]
	v := &wire.Verdict{
		Code: wire.CodeMismatch, By: -1,
		Reason: fmt.Sprintf("rank %d (%s) has a world size of %d, rank %d (%s) has %d", first.rank, first.label, r.size, c.Rank, c.Label, c.Size),
	}
	m.noteRoll(r, v)
	rep := failed(v)
	for _, a := range r.inOrder() {
		m.answer(&a.waiter, rep)
	}
	m.close(r)
	return rep
}

func (m *Machine) close(r *roll) {
	if r.from != nil {
		r.from.shrink = nil
		return
	}
	delete(m.rolls, r.key)
}

func (r *roll) inOrder() []*applicant {
	as := slices.Collect(maps.Values(r.applicants))
	slices.SortFunc(as, func(a, b *applicant) int { return cmp.Compare(a.rank, b.rank) })
	return as
}

// missing are the ranks that r still needs.
func (r *roll) missing() (ranks []int) {
	for rank := range r.size {
		if r.applicants[rank] == nil && (r.from == nil || r.from.seats[rank].gone == wire.CodeOK) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// complete reports whether everybody is there, without a look at each rank.
func (r *roll) complete() bool {
	if r.from != nil {
		return len(r.applicants) == r.from.present
	}
	return len(r.applicants) == r.size
}

// completeRoll makes a group of r, if everybody is there, and tells them.
func (m *Machine) completeRoll(r *roll) {
	if !r.complete() || len(r.applicants) == 0 {
		return
	}
	m.close(r)
	as := r.inOrder()
	m.generation++
	g := &group{
		key: r.key, gen: m.generation, seats: make([]seat, len(as)), present: len(as), born: m.now,
		channels: map[string]*channel{}, streams: map[streamKey]*stream{},
	}
	for i, a := range as {
		g.seats[i] = seat{session: a.Session, join: a.ID, label: a.label, member: a.member, at: m.now}
		s := m.sessions[a.Session]
		s.seats = append(s.seats, seatID{g, i})
		if r.from != nil {
			g.old = append(g.old, a.rank)
		}
	}
	m.groups[g.gen] = g
	m.order.add(g)
	m.live[g.key] = g
	rep := g.welcome()
	for _, a := range as {
		m.answer(&a.waiter, rep)
	}
	if r.from != nil {
		m.retire(r.from)
	}
}

// retire ends a generation whose survivors have a new one.
func (m *Machine) retire(g *group) {
	for rank := range g.seats {
		s := &g.seats[rank]
		if s.gone != wire.CodeOK {
			continue
		}
		of := m.sessions[s.session]
		of.seats = slices.DeleteFunc(of.seats, func(id seatID) bool { return id == seatID{g, rank} })
		m.dropAll(of, wire.CodeClosed, func(w *waiter) bool { return w.of(g, rank) })
		m.fence(g, wire.CodeLeft, "", rank)
	}
}

// drop withdraws a rank; the others wait on.
func (a *applicant) drop(m *Machine, w *waiter, why wire.Code) {
	r := a.roll
	delete(r.applicants, a.rank)
	if len(r.applicants) == 0 {
		m.close(r)
	}
	if gone(why) {
		m.forget(w)
		return
	}
	v := &wire.Verdict{Code: why, By: -1, Missing: r.missing(), Waited: m.now - a.since}
	v.Missing = slices.DeleteFunc(v.Missing, func(rank int) bool { return rank == a.rank })
	if why == wire.CodeCancelled {
		v.By = a.rank
	}
	if g := m.live[r.key]; g != nil && r.from == nil {
		v.Reason = fmt.Sprintf("generation %d of this group is still live", g.gen)
	}
	if r.from != nil {
		v.Doing = m.doing(r.from, v.Missing)
	}
	m.noteRoll(r, v)
	m.answer(w, failed(v))
}

func (a *applicant) doing(*waiter) (*group, string) {
	if a.roll.from != nil {
		return a.roll.from, "shrink"
	}
	return nil, ""
}
