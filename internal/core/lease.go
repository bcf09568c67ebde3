package core

import (
	"container/list"
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// lease owns entries: they are deleted when it ends, which is when its session ends, when it is
// revoked, or when its client has not kept it alive for ttl. It ends once. Ids grow and are never
// used again, so an id can serve as a fencing token (Kleppmann, "How to do distributed locking").
type lease struct {
	id      uint64
	session uint64
	place   *list.Element // in the leases of the session
	ttl     Time
	timer   timer
	ref     uint32 // place in Machine.leaseRefs, plus 1, while it has entries
	entries leaseList
	ended   bool
}

func (l *lease) timerState() *timer { return &l.timer }

// due ends a lease that has not been kept alive.
func (l *lease) due(m *Machine) {
	m.sessions[l.session].leases.Remove(l.place) // in constant time: all leases of a session may expire together
	m.endLease(l)
}

// addLease adds l to the leases that are alive.
func (m *Machine) addLease(s *session, l *lease) {
	m.leases[l.id] = l
	l.place = s.leases.PushBack(l)
}

// endLeases ends the leases of a session that ends.
func (m *Machine) endLeases(s *session) {
	for p := s.leases.Front(); p != nil; p = p.Next() {
		m.endLease(p.Value.(*lease))
	}
}

// grant makes a lease for the caller's session.
func (m *Machine) grant(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	s := m.sessions[t.Session]
	switch {
	case req.TTL <= 0:
		return refuse(rep, wire.CodeInvalid, "a lease needs a time to live")
	case s.leases.Len() >= m.limits.Leases:
		return refuse(rep, wire.CodeFull, fmt.Sprintf("the limit is %d leases", m.limits.Leases))
	}
	m.lastLease++
	l := &lease{id: m.lastLease, session: t.Session, ttl: req.TTL}
	m.addLease(s, l)
	m.account.charge(t.Session, leaseCost)
	m.arm(l, m.after(l.ttl))
	rep.N = int64(l.id)
	return true
}

// leaseOf returns a lease of the caller's session. If it has none with that id it returns nil, and
// puts the error into rep.
func (m *Machine) leaseOf(t Ticket, id uint64, rep *wire.Reply) *lease {
	l := m.leases[id]
	switch {
	case l == nil:
		refuse(rep, wire.CodeNotFound, fmt.Sprintf("lease %d has ended, or never existed", id))
	case l.session != t.Session:
		refuse(rep, wire.CodeDenied, fmt.Sprintf("lease %d belongs to another session", id))
	default:
		return l
	}
	return nil
}

// keepAlive restarts the time of a lease.
func (m *Machine) keepAlive(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	if l := m.leaseOf(t, req.Lease, rep); l != nil {
		m.arm(l, m.after(l.ttl))
	}
	return true
}

// revokeLease ends a lease at the request of its session.
func (m *Machine) revokeLease(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	if l := m.leaseOf(t, req.Lease, rep); l != nil {
		l.due(m)
	}
	return true
}

// endLease ends a lease. Its entries are no longer visible, and Tick removes them in portions,
// since they may be many.
func (m *Machine) endLease(l *lease) {
	m.disarm(l)
	delete(m.leases, l.id)
	m.account.release(l.session, leaseCost)
	if l.ended = true; l.entries.n > 0 {
		m.endedLeases = append(m.endedLeases, l)
	}
}

// attach moves e from its lease to l; nil is no lease.
func (m *Machine) attach(e *entry, l *lease) {
	if e.lease > 0 {
		m.detach(e)
	}
	if l == nil {
		return
	}
	if l.ref == 0 {
		m.assignRef(l)
	}
	l.entries.push(&m.entries.slab, e, l.ref)
}

// detach removes e from its lease. A lease without entries gives its reference back.
func (m *Machine) detach(e *entry) {
	l := m.leaseRefs[e.lease-1]
	if l.entries.remove(&m.entries.slab, e); l.entries.n == 0 {
		m.leaseRefs[l.ref-1] = nil
		m.freeLeaseRefs = append(m.freeLeaseRefs, l.ref)
		l.ref = 0
	}
}

// assignRef gives l a reference of 32 bits: an entry has no space for a pointer.
func (m *Machine) assignRef(l *lease) {
	if n := len(m.freeLeaseRefs); n > 0 {
		l.ref = m.freeLeaseRefs[n-1]
		m.freeLeaseRefs = m.freeLeaseRefs[:n-1]
		m.leaseRefs[l.ref-1] = l
		return
	}
	m.leaseRefs = append(m.leaseRefs, l)
	l.ref = uint32(len(m.leaseRefs))
}
