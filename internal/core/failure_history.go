package core

import (
	"cmp"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// What a machine remembers of what failed, for those who look at it: nothing that it does depends on that, and a checkpoint does
// not have it. What succeeds costs nothing here.
const (
	maxGroupFailures = 8  // verdicts of one group
	maxEndedGroups   = 16 // groups that are over and failed, or did not come together
	maxFailureRanks  = 64 // of each list of a verdict
	maxFailureReason = 512
)

// failure is a verdict that was no success.
type pastFailure struct {
	channel string
	seq     uint64
	verb    string // "": all of the group
	at      Time
	unnamed int // ranks that verdict does not name
	failure wire.Failure
}

// status is f as it is told. Below a prefix not what ranks do elsewhere, which may be above it.
func (f *pastFailure) status(ago Time, prefix string) wire.FailureStatus {
	s := wire.FailureStatus{Channel: f.channel, Seq: f.seq, Verb: f.verb, Ago: ago, Failure: f.failure, Unnamed: f.unnamed}
	if prefix != "" {
		s.Failure.Doing = nil
	}
	return s
}

// pastGroup is a group that is over.
type endedGroup struct {
	key        groupKey
	gen        uint64 // 0: it did not come together
	size       int
	born, at   Time // its life
	revocation *pastFailure
	failures   []pastFailure
}

// failure is a failure of now. It holds nothing large of v.
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

// note keeps the last failures.
func appendFailure(list *[]pastFailure, f pastFailure) {
	if len(*list) == maxGroupFailures {
		copy(*list, (*list)[1:])
		(*list)[maxGroupFailures-1] = f
		return
	}
	*list = append(*list, f)
}

// noteRoll notes that the attempt r has failed.
func (m *Machine) noteRendezvous(r *rendezvous, v *wire.Failure) {
	if r.from != nil {
		appendFailure(&r.from.failures, m.newPastFailure("", "shrink", 0, v))
		return
	}
	m.addEndedGroup(endedGroup{key: r.key, size: r.size, born: m.now - v.Waited, at: m.now, failures: []pastFailure{m.newPastFailure("", "create", 0, v)}})
}

// pastGroup is what is to be told of g when it is over.
func (g *group) ended(now Time) endedGroup {
	p := endedGroup{key: g.key, gen: g.gen, size: len(g.members), born: g.born, at: now, failures: g.failures}
	if g.revoked != nil {
		p.revocation = &g.revocation
	}
	return p
}

// notePast keeps a group that is over, if there is something to tell of it.
func (m *Machine) addEndedGroup(p endedGroup) {
	if p.revocation == nil && len(p.failures) == 0 {
		return
	}
	if len(m.endedGroups) == maxEndedGroups {
		m.endedGroups = slices.Delete(m.endedGroups, 0, 1)
	}
	m.endedGroups = append(m.endedGroups, p)
}

// order lists the groups by generation. Those that are gone leave a hole, until holes are half of it.
type groupIndex struct {
	list  []indexedGroup
	holes int
}

type indexedGroup struct {
	gen uint64
	g   *group
}

func (o *groupIndex) add(g *group) { o.list = append(o.list, indexedGroup{g.gen, g}) }

func (o *groupIndex) remove(g *group) {
	i, ok := slices.BinarySearchFunc(o.list, g.gen, func(x indexedGroup, gen uint64) int { return cmp.Compare(x.gen, gen) })
	if !ok || o.list[i].g == nil {
		return
	}
	o.list[i].g = nil
	if o.holes++; o.holes > len(o.list)/2 {
		o.list = slices.DeleteFunc(o.list, func(x indexedGroup) bool { return x.g == nil })
		o.holes = 0
	}
}
