package core

import (
	"slices"

	"github.com/muster-pg/muster/wire"
)

// Bounds of the failures that a machine remembers for the status page. The history is not part of
// the state: no decision depends on it, and checkpoints do not have it. Operations that succeed add
// nothing to it.
const (
	maxGroupFailures = 8   // failures of one group
	maxEndedGroups   = 16  // groups that have ended with a failure, or were never formed
	maxFailureRanks  = 64  // ranks in each list of a failure
	maxFailureReason = 512 // bytes of a reason
)

// pastFailure is a failure as the history keeps it.
type pastFailure struct {
	channel string
	seq     uint64
	verb    string // "": the failure revoked the group
	at      Time
	unnamed int // ranks that were cut from the lists of failure
	failure wire.Failure
}

// status returns f for a status page. Below a prefix it has no activities of ranks: those may be in
// groups that the caller has no right to see.
func (f *pastFailure) status(ago Time, prefix string) wire.FailureStatus {
	s := wire.FailureStatus{Channel: f.channel, Seq: f.seq, Verb: f.verb, Ago: ago, Failure: f.failure, Unnamed: f.unnamed}
	if prefix != "" {
		s.Failure.Doing = nil
	}
	return s
}

// endedGroup is a group that has ended with a failure, or was never formed.
type endedGroup struct {
	key        groupKey
	gen        uint64 // 0: it was never formed
	size       int
	began, at  Time         // when it began and ended
	revocation *pastFailure // nil: it was not revoked
	failures   []pastFailure
}

// newPastFailure copies v, with its lists and its reason cut to their bounds, so that the history
// holds nothing large.
func (m *Machine) newPastFailure(channel, verb string, seq uint64, v *wire.Failure) pastFailure {
	f := pastFailure{channel: channel, seq: seq, verb: verb, at: m.now, failure: *v}
	own := &f.failure
	for _, ranks := range []*[]int{&own.Missing, &own.Lost, &own.Left} {
		f.unnamed += max(0, len(*ranks)-maxFailureRanks)
		*ranks = slices.Clone((*ranks)[:min(len(*ranks), maxFailureRanks)])
	}
	if len(v.Reason) > maxFailureReason {
		own.Reason = string([]byte(v.Reason[:maxFailureReason]))
	}
	return f
}

// appendFailure adds f to a list of the last failures of a group.
func appendFailure(list *[]pastFailure, f pastFailure) {
	if len(*list) == maxGroupFailures {
		copy(*list, (*list)[1:])
		(*list)[maxGroupFailures-1] = f
		return
	}
	*list = append(*list, f)
}

// noteRendezvous adds the failed rendezvous r to the history: to that of the group that shrinks, or
// as a group that was never formed.
func (m *Machine) noteRendezvous(r *rendezvous, v *wire.Failure) {
	if r.from != nil {
		appendFailure(&r.from.failures, m.newPastFailure("", "shrink", 0, v))
		return
	}
	m.addEndedGroup(endedGroup{key: r.key, size: r.size, began: m.now - v.Waited, at: m.now, failures: []pastFailure{m.newPastFailure("", "create", 0, v)}})
}

// ended returns what the history keeps of g.
func (g *group) ended(now Time) endedGroup {
	p := endedGroup{key: g.key, gen: g.gen, size: len(g.members), began: g.began, at: now, failures: g.failures}
	if g.revoked != nil {
		p.revocation = &g.revocation
	}
	return p
}

// addEndedGroup adds p to the history, if it had a failure.
func (m *Machine) addEndedGroup(p endedGroup) {
	if p.revocation == nil && len(p.failures) == 0 {
		return
	}
	if len(m.endedGroups) == maxEndedGroups {
		m.endedGroups = slices.Delete(m.endedGroups, 0, 1)
	}
	m.endedGroups = append(m.endedGroups, p)
}
