package core

import (
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// The functions of this file look at one vote. The machine uses them, and so does package hostmem.

// Agree reports whether two ranks called the same operation: verb, root, label and reduction are
// equal, and types are if both ranks named one. A client of a language without static types names
// none.
func Agree(a, b *wire.Contribution) bool {
	return a.Verb == b.Verb && a.Root == b.Root && a.RootOnly == b.RootOnly && a.Label == b.Label && a.Reduction == b.Reduction &&
		(a.Want == wire.WantPart) == (b.Want == wire.WantPart) &&
		(a.Type == b.Type || a.Type == "" || b.Type == "")
}

// Describe formats a call as its caller would write it: verb, root and channel.
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

// Parse validates a vote of one of n ranks. It is called once for each vote, before the vote
// counts; later code trusts it. It returns the parts of the payload, one for each rank, if the call
// has parts, and why the vote is malformed, or "". The parts alias payload.
func Parse(c *wire.Contribution, payload []byte, n int) (parts [][]byte, why string) {
	switch {
	case c.Root < -1 || c.Root >= n:
		return nil, fmt.Sprintf("root %d of %d", c.Root, n)
	case c.RootOnly && c.Root < 0:
		return nil, "root-only without a root"
	case c.Stall < 0:
		return nil, fmt.Sprintf("a stall of %v", c.Stall)
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
		return nil, "no such reduction"
	case len(payload)%c.Reduction.Kind.Size() != 0:
		return nil, fmt.Sprintf("%d bytes are not numbers of %d bytes", len(payload), c.Reduction.Kind.Size())
	}
	return nil, ""
}

// RoundTwoDigits truncates d to its two most significant digits.
func RoundTwoDigits(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d/unit < 100 {
			return d / unit * unit
		}
	}
}
