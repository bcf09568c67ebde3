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

// malformed is why a vote cannot be part of r, in words; "" if it can. What rank 3 sends
// may be anything: it is looked at once, here, and trusted when the record is decided.
func (r *record) malformed(c *wire.Contribution, payload []byte) string {
	n := len(r.ballots)
	switch {
	case c.Root < -1 || c.Root >= n:
		return fmt.Sprintf("root %d of %d", c.Root, n)
	case c.RootOnly && c.Root < 0:
		return "a root's verb without a root"
	case int(c.Want) >= n || c.Want < wire.WantFold:
		return fmt.Sprintf("wants the payload of rank %d of %d", c.Want, n)
	case c.Want == wire.WantPart && (!c.RootOnly || c.Rank == c.Root):
		return r.takeParts(c.Rank, payload)
	case c.Want == wire.WantFold || c.Fold != wire.Fold{}:
		return r.foldable(c, payload)
	}
	return ""
}

// takeParts keeps the parts of rank's payload, one for each rank.
func (r *record) takeParts(rank int, payload []byte) string {
	parts, err := wire.ParseParts(payload, len(r.ballots))
	if err != nil {
		return err.Error()
	}
	if r.parts == nil {
		r.parts = make([][][]byte, len(r.ballots))
	}
	r.parts[rank] = parts
	return ""
}

// foldable checks numbers to fold: every rank has as many as the first.
func (r *record) foldable(c *wire.Contribution, payload []byte) string {
	if !c.Fold.Valid() || c.RootOnly {
		return "no such fold"
	}
	if len(payload)%c.Fold.Kind.Size() != 0 {
		return fmt.Sprintf("%d bytes are not numbers of %d bytes", len(payload), c.Fold.Kind.Size())
	}
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
