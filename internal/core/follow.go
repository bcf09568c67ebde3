package core

import (
	"slices"

	"github.com/muster-pg/muster/wire"
)

// follow is a call that waits until its group is revoked.
type follow struct {
	waiter
	g *group
}

// follow answers at once if the group is revoked, and otherwise when it is.
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
