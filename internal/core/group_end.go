package core

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// leave removes a rank from its group, or revokes the group if the request has a reason: an abort, or
// a mismatch that the rank has found in an operation that the store did not decide.
func (m *Machine) leave(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, _ := m.memberOf(t, c, rep)
	if g == nil {
		return true
	}
	if c.No != wire.CodeOK {
		m.revoke(g, &wire.Failure{Code: revocationCode(c.No), By: c.Rank, Reason: strings.Clone(c.Reason)}, everyRecord)
		return true
	}
	m.removeMembers(g, c.Rank)
	return true
}

// revocationCode returns the code of a revocation that a rank asks for.
func revocationCode(no wire.Code) wire.Code {
	if no == wire.CodeMismatch {
		return no
	}
	return wire.CodeAborted
}

// removeMembers removes present members, which have left. Their waiting calls get CodeClosed first,
// so that none of them decides a record for the others.
func (m *Machine) removeMembers(g *group, ranks ...int) {
	for _, rank := range ranks {
		s := m.sessions[g.members[rank].session]
		m.dropAll(s, wire.CodeClosed, func(w *waiter) bool { return w.belongsTo(g, rank) })
		s.memberships = slices.DeleteFunc(s.memberships, func(id membership) bool { return id == membership{g, rank} })
	}
	m.fence(g, wire.CodeLeft, "", ranks...)
}

// fence removes members that have left or failed (how): from here on no call of theirs is accepted,
// no record waits for them, and what was kept for them alone is freed. Failed members revoke the
// generation, with cause, or the label of the first of them, as the reason.
//
// A vote that a removed member has sent still counts. A record that has all the votes it needs is
// therefore decided the same way whether the failure was detected before or after its last vote:
// only records that lack a vote of a removed member fail. Members that fail together (ranks) are
// removed in one step, so that one failure names all of them.
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

// drop deletes a group without members, and the keys of its generation. It may be called twice: a fence may complete the shrink of
// its group, which removes the remaining members, and with them the group, inside of the fence.
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
	if keys := fmt.Sprintf("%s/%d/", g.key.name, g.gen); m.firstBelow(keys) != nil {
		m.endedKeys = append(m.endedKeys, keys) // they may be many: see Tick
	}
	for _, st := range g.streamsInOrder() {
		m.disarm(st)
	}
	for _, ch := range g.inOrder() {
		for _, r := range ch.records {
			m.disarm(r)
			m.unwatch(r)
		}
	}
	for _, f := range g.follows {
		m.unregister(&f.waiter)
	}
}

// everyRecord selects all records, for revoke and decideAll.
func everyRecord(*record) bool { return true }

// revoke ends generation g with failure v, and fails the open records that which selects. Only the
// first revocation counts: followers, waiting sends and receives, and all later calls get its
// failure.
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

// decideAll fails the open records of g that which selects with v. The order is by channel and
// sequence number, as maps have none: a replay of the log must produce the same replies in the same
// order.
func (m *Machine) decideAll(g *group, v *wire.Failure, which func(*record) bool) {
	for _, ch := range g.inOrder() {
		for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
			if r := ch.records[seq]; r != nil && r.open() && which(r) {
				own := *v
				own.Waited = m.now - r.began
				if len(v.Lost) > 1 { // votes that were sent count: a record names only the ranks that it lacks
					own.Lost = slices.DeleteFunc(slices.Clone(v.Lost), func(rank int) bool { return !r.lacks(rank) })
				}
				m.decide(r, failureReply(&own))
			}
		}
	}
}

// failureReply returns the reply for a failed operation. All ranks share it, so it must not be
// modified.
func failureReply(v *wire.Failure) *wire.Reply { return &wire.Reply{Code: v.Code, Failure: v} }
