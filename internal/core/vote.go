package core

import (
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// What is here is of one vote, and the same for whoever decides records: the machine, and an engine whose records are elsewhere.

// Agree reports whether two ranks called the same verb. Types count only if both told one: not every language has them.
func Agree(a, b *wire.Contribution) bool {
	return a.Verb == b.Verb && a.Root == b.Root && a.RootOnly == b.RootOnly && a.Label == b.Label && a.Reduction == b.Reduction &&
		(a.Want == wire.WantPart) == (b.Want == wire.WantPart) &&
		(a.Type == b.Type || a.Type == "" || b.Type == "")
}

// Describe is a verb as its caller would write it.
func Describe(c *wire.Contribution) string {
	s := c.Verb
	if c.Root >= 0 {
		s += fmt.Sprintf("(root %d)", c.Root)
	}
	if c.Channel != "" {
		s += " on channel " + c.Channel
	}
	return s
}

// Parse looks at a vote of one of n ranks once; afterwards it is trusted. It returns the parts of the payload if it has a part for each
// rank, and why the vote can be in no record, in words; "" if it can.
func Parse(c *wire.Contribution, payload []byte, n int) (parts [][]byte, why string) {
	switch {
	case c.Root < -1 || c.Root >= n:
		return nil, fmt.Sprintf("root %d of %d", c.Root, n)
	case c.RootOnly && c.Root < 0:
		return nil, "a root's verb without a root"
	case int(c.Want) >= n || c.Want < wire.WantReduced:
		return nil, fmt.Sprintf("wants the payload of rank %d of %d", c.Want, n)
	case c.Want == wire.WantPart && (!c.RootOnly || c.Rank == c.Root):
		parts, err := wire.ParseParts(payload, n)
		if err != nil {
			return nil, err.Error()
		}
		return parts, ""
	case c.Want != wire.WantReduced && c.Reduction == wire.Reduction{}:
		return nil, ""
	case !c.Reduction.Valid() || c.RootOnly:
		return nil, "no such fold"
	case len(payload)%c.Reduction.Kind.Size() != 0:
		return nil, fmt.Sprintf("%d bytes are not numbers of %d bytes", len(payload), c.Reduction.Kind.Size())
	}
	return nil, ""
}

// Rough is a time to two digits that matter.
func RoundTwoDigits(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d/unit < 100 {
			return d / unit * unit
		}
	}
}
