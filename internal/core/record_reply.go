package core

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// done is the answer to those who want nothing but to know, and to know for whom they waited. There is one for each rank, so that
// a decision makes none.
func (m *Machine) plainReply(last int32) *wire.Reply {
	for len(m.plainReplies) <= int(last) {
		m.plainReplies = append(m.plainReplies, nil)
	}
	if m.plainReplies[last] == nil {
		m.plainReplies[last] = &wire.Reply{N: int64(last)}
	}
	return m.plainReplies[last]
}

// malformed is why a vote cannot be part of r, in words; "" if it can.
func (r *record) malformed(c *wire.Contribution, payload []byte) string {
	parts, why := Parse(c, payload, len(r.votes))
	switch {
	case why != "":
		return why
	case parts != nil:
		r.keepParts(c.Rank, parts)
	case c.Reduction.Valid():
		return r.lengthMismatch(c, payload)
	}
	return ""
}

// keep keeps the parts of rank's payload, one for each rank.
func (r *record) keepParts(rank int, parts [][]byte) {
	if r.parts == nil {
		r.parts = make([][][]byte, len(r.votes))
	}
	r.parts[rank] = parts
}

// uneven is why numbers cannot be folded with those that are there: every rank has as many as the first.
func (r *record) lengthMismatch(c *wire.Contribution, payload []byte) string {
	if i := slices.IndexFunc(r.votes, func(b vote) bool { return b.yes }); i >= 0 && len(r.votes[i].payload) != len(payload) {
		size := c.Reduction.Kind.Size()
		return fmt.Sprintf("%d numbers, rank %d has %d", len(payload)/size, i, len(r.votes[i].payload)/size)
	}
	return ""
}

// result is what rank gets of a decided record. Equal answers are one Reply. N of a success is 1 + the rank that came last.
func (m *Machine) replyFor(r *record, rank int, want int32) *wire.Reply {
	last := int64(r.last)
	switch {
	case r.failed != nil:
		return r.failed
	case want >= 0 && int(want) == r.call.Root:
		return makeOnce(&r.rootReply, func() *wire.Reply { return &wire.Reply{N: last, Value: r.votes[want].payload} })
	case want >= 0 && int(want) < len(r.votes):
		return &wire.Reply{N: last, Value: r.votes[want].payload}
	case want == wire.WantPart && r.parts != nil:
		return r.part(rank)
	case want == wire.WantReduced && r.call.Reduction.Valid():
		return makeOnce(&r.reducedReply, r.reduce)
	case want == wire.WantAll:
		return makeOnce(&r.allReply, r.allPayloads)
	}
	return m.plainReply(r.last)
}

func makeOnce(rep **wire.Reply, make func() *wire.Reply) *wire.Reply {
	if *rep == nil {
		*rep = make()
	}
	return *rep
}

func (r *record) allPayloads() *wire.Reply {
	rep := &wire.Reply{N: int64(r.last), Values: make([][]byte, len(r.votes))}
	for i := range r.votes {
		rep.Values[i] = r.votes[i].payload
	}
	return rep
}

// part is rank's part of the root's payload, or of everybody's.
func (r *record) part(rank int) *wire.Reply {
	if r.call.RootOnly {
		return &wire.Reply{N: int64(r.last), Values: [][]byte{r.parts[r.call.Root][rank]}}
	}
	rep := &wire.Reply{N: int64(r.last), Values: make([][]byte, len(r.parts))}
	for i, parts := range r.parts {
		rep.Values[i] = parts[rank]
	}
	return rep
}

// fold folds all payloads in rank order, so that every run has the same bits.
func (r *record) reduce() *wire.Reply {
	sum := slices.Clone(r.votes[0].payload)
	for i := range r.votes[1:] {
		Reduce(r.call.Reduction, sum, r.votes[i+1].payload)
	}
	return &wire.Reply{N: int64(r.last), Value: sum}
}
