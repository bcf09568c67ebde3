package core

import (
	"cmp"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// What a machine remembers of what failed, for those who look at it: nothing that it does depends on that, and a checkpoint does
// not have it. What succeeds costs nothing here.
const (
	failuresOfGroup = 8  // verdicts of one group
	pastGroups      = 16 // groups that are over and failed, or did not come together
	failureRanks    = 64 // of each list of a verdict
	failureReason   = 512
)

// failure is a verdict that was no success.
type failure struct {
	channel string
	seq     uint64
	verb    string // "": all of the group
	at      Time
	more    int // ranks that verdict does not name
	verdict wire.Verdict
}

// status is f as it is told. Below a prefix not what ranks do elsewhere, which may be above it.
func (f *failure) status(ago Time, prefix string) wire.VerdictStatus {
	s := wire.VerdictStatus{Channel: f.channel, Seq: f.seq, Verb: f.verb, Ago: ago, Verdict: f.verdict, More: f.more}
	if prefix != "" {
		s.Verdict.Doing = nil
	}
	return s
}

// pastGroup is a group that is over.
type pastGroup struct {
	key      rollKey
	gen      uint64 // 0: it did not come together
	size     int
	born, at Time // its life
	over     *failure
	failures []failure
}

// failure is a failure of now. It holds nothing large of v.
func (m *Machine) failure(channel, verb string, seq uint64, v *wire.Verdict) failure {
	f := failure{channel: channel, seq: seq, verb: verb, at: m.now, verdict: *v}
	own := &f.verdict
	for _, ranks := range []*[]int{&own.Missing, &own.Lost, &own.Left} {
		f.more += max(0, len(*ranks)-failureRanks)
		*ranks = slices.Clone((*ranks)[:min(len(*ranks), failureRanks)])
	}
	if len(v.Reason) > failureReason {
		own.Reason = string([]byte(v.Reason[:failureReason]))
	}
	return f
}

// note keeps the last failures.
func note(list *[]failure, f failure) {
	if len(*list) == failuresOfGroup {
		copy(*list, (*list)[1:])
		(*list)[failuresOfGroup-1] = f
		return
	}
	*list = append(*list, f)
}

// noteRoll notes that the attempt r has failed.
func (m *Machine) noteRoll(r *roll, v *wire.Verdict) {
	if r.from != nil {
		note(&r.from.failures, m.failure("", "shrink", 0, v))
		return
	}
	m.notePast(pastGroup{key: r.key, size: r.size, born: m.now - v.Waited, at: m.now, failures: []failure{m.failure("", "create", 0, v)}})
}

// pastGroup is what is to be told of g when it is over.
func (g *group) pastGroup(now Time) pastGroup {
	p := pastGroup{key: g.key, gen: g.gen, size: len(g.seats), born: g.born, at: now, failures: g.failures}
	if g.revoked != nil {
		p.over = &g.over
	}
	return p
}

// notePast keeps a group that is over, if there is something to tell of it.
func (m *Machine) notePast(p pastGroup) {
	if p.over == nil && len(p.failures) == 0 {
		return
	}
	if len(m.past) == pastGroups {
		m.past = slices.Delete(m.past, 0, 1)
	}
	m.past = append(m.past, p)
}

// order lists the groups by generation. Those that are gone leave a hole, until holes are half of it.
type order struct {
	list  []ordered
	holes int
}

type ordered struct {
	gen uint64
	g   *group
}

func (o *order) add(g *group) { o.list = append(o.list, ordered{g.gen, g}) }

func (o *order) remove(g *group) {
	i, ok := slices.BinarySearchFunc(o.list, g.gen, func(x ordered, gen uint64) int { return cmp.Compare(x.gen, gen) })
	if !ok || o.list[i].g == nil {
		return
	}
	o.list[i].g = nil
	if o.holes++; o.holes > len(o.list)/2 {
		o.list = slices.DeleteFunc(o.list, func(x ordered) bool { return x.g == nil })
		o.holes = 0
	}
}
