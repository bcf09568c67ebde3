package core

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// done is the answer to those who want nothing but to know, and to know for whom they waited. There is one for each rank, so that
// a decision makes none.
func (m *Machine) done(last int32) *wire.Reply {
	for len(m.dones) <= int(last) {
		m.dones = append(m.dones, nil)
	}
	if m.dones[last] == nil {
		m.dones[last] = &wire.Reply{N: int64(last)}
	}
	return m.dones[last]
}

// malformed is why a vote cannot be part of r, in words; "" if it can.
func (r *record) malformed(c *wire.Contribution, payload []byte) string {
	parts, why := Parse(c, payload, len(r.ballots))
	switch {
	case why != "":
		return why
	case parts != nil:
		r.keep(c.Rank, parts)
	case c.Fold.Valid():
		return r.uneven(c, payload)
	}
	return ""
}

// keep keeps the parts of rank's payload, one for each rank.
func (r *record) keep(rank int, parts [][]byte) {
	if r.parts == nil {
		r.parts = make([][][]byte, len(r.ballots))
	}
	r.parts[rank] = parts
}

// uneven is why numbers cannot be folded with those that are there: every rank has as many as the first.
func (r *record) uneven(c *wire.Contribution, payload []byte) string {
	if i := slices.IndexFunc(r.ballots, func(b ballot) bool { return b.yes }); i >= 0 && len(r.ballots[i].payload) != len(payload) {
		size := c.Fold.Kind.Size()
		return fmt.Sprintf("%d numbers, rank %d has %d", len(payload)/size, i, len(r.ballots[i].payload)/size)
	}
	return ""
}

// result is what rank gets of a decided record. Equal answers are one Reply. N of a success is 1 + the rank that came last.
func (m *Machine) result(r *record, rank int, want int32) *wire.Reply {
	last := int64(r.last)
	switch {
	case r.failed != nil:
		return r.failed
	case want >= 0 && int(want) == r.cast.Root:
		return once(&r.rooted, func() *wire.Reply { return &wire.Reply{N: last, Value: r.ballots[want].payload} })
	case want >= 0 && int(want) < len(r.ballots):
		return &wire.Reply{N: last, Value: r.ballots[want].payload}
	case want == wire.WantPart && r.parts != nil:
		return r.part(rank)
	case want == wire.WantFold && r.cast.Fold.Valid():
		return once(&r.folded, r.fold)
	case want == wire.WantAll:
		return once(&r.all, r.everything)
	}
	return m.done(r.last)
}

func once(rep **wire.Reply, make func() *wire.Reply) *wire.Reply {
	if *rep == nil {
		*rep = make()
	}
	return *rep
}

func (r *record) everything() *wire.Reply {
	rep := &wire.Reply{N: int64(r.last), Values: make([][]byte, len(r.ballots))}
	for i := range r.ballots {
		rep.Values[i] = r.ballots[i].payload
	}
	return rep
}

// part is rank's part of the root's payload, or of everybody's.
func (r *record) part(rank int) *wire.Reply {
	if r.cast.RootOnly {
		return &wire.Reply{N: int64(r.last), Values: [][]byte{r.parts[r.cast.Root][rank]}}
	}
	rep := &wire.Reply{N: int64(r.last), Values: make([][]byte, len(r.parts))}
	for i, parts := range r.parts {
		rep.Values[i] = parts[rank]
	}
	return rep
}

// fold folds all payloads in rank order, so that every run has the same bits.
func (r *record) fold() *wire.Reply {
	sum := slices.Clone(r.ballots[0].payload)
	for i := range r.ballots[1:] {
		Fold(r.cast.Fold, sum, r.ballots[i+1].payload)
	}
	return &wire.Reply{N: int64(r.last), Value: sum}
}
