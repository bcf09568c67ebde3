package core

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// plainReply returns the reply for ranks that want no payload. Its N is last: 1 + the rank that
// voted last, or 0. There is one for each rank, made once, so that deciding a barrier allocates
// nothing.
func (m *Machine) plainReply(last int32) *wire.Reply {
	for len(m.plainReplies) <= int(last) {
		m.plainReplies = append(m.plainReplies, nil)
	}
	if m.plainReplies[last] == nil {
		m.plainReplies[last] = &wire.Reply{N: int64(last)}
	}
	return m.plainReplies[last]
}

// malformed returns why a vote cannot be part of r, or "".
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

// keepParts keeps the parts of rank's payload, of which there is one for each rank.
func (r *record) keepParts(rank int, parts [][]byte) {
	if r.parts == nil {
		r.parts = make([][][]byte, len(r.votes))
	}
	r.parts[rank] = parts
}

// lengthMismatch returns why the numbers of a vote cannot be reduced with those of the earlier
// votes, or "". All ranks must send the same count.
func (r *record) lengthMismatch(c *wire.Contribution, payload []byte) string {
	if i := slices.IndexFunc(r.votes, func(b vote) bool { return b.yes }); i >= 0 && len(r.votes[i].payload) != len(payload) {
		size := c.Reduction.Kind.Size()
		return fmt.Sprintf("%d numbers, rank %d has %d", len(payload)/size, i, len(r.votes[i].payload)/size)
	}
	return ""
}

// replyFor returns the reply to rank, which wants want, of a decided record. Ranks that want the
// same share one Reply, which must not be modified. N of a success is 1 + the rank whose vote came
// last: traces show who the others waited for.
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

// makeOnce returns *rep, which make makes the first time.
func makeOnce(rep **wire.Reply, make func() *wire.Reply) *wire.Reply {
	if *rep == nil {
		*rep = make()
	}
	return *rep
}

// allPayloads returns the reply to WantAll: the payloads in the order of ranks.
func (r *record) allPayloads() *wire.Reply {
	rep := &wire.Reply{N: int64(r.last), Values: make([][]byte, len(r.votes))}
	for i := range r.votes {
		rep.Values[i] = r.votes[i].payload
	}
	return rep
}

// part returns the reply to WantPart: rank's part of the root's payload (scatter), or of the
// payload of each rank (all-to-all).
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

// reduce returns the reply to WantReduced. It reduces in the order of ranks, whatever the order of
// votes was, so that every run with the same numbers has the same bits.
func (r *record) reduce() *wire.Reply {
	payloads := make([][]byte, len(r.votes))
	for i := range r.votes {
		payloads[i] = r.votes[i].payload
	}
	return &wire.Reply{N: int64(r.last), Value: Reduce(r.call.Reduction, payloads)}
}
