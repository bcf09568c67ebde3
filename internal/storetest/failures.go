package storetest

import (
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var failureChecks = []check{
	{"a vote that makes no sense is ErrInvalid for all", nonsense, []Feature{Collect}},
}

// nonsense checks that an invalid vote reaches the other ranks as an error: otherwise they would
// wait until their timeout.
func nonsense(t *testing.T, w *world) {
	for name, change := range map[string]func(*wire.Contribution){
		"root out of range":     func(c *wire.Contribution) { c.Root = 2 },
		"root below range":      func(c *wire.Contribution) { c.Root = -2 },
		"no root for its verb":  func(c *wire.Contribution) { c.RootOnly = true },
		"wants a rank too high": func(c *wire.Contribution) { c.Want = 2 },
		"wants what is not":     func(c *wire.Contribution) { c.Want = wire.WantReduced - 1 },
		"no such reduction":     func(c *wire.Contribution) { c.Want, c.Reduction = wire.WantReduced, wire.Reduction{Op: 99, Kind: 99} },
		"half a number": func(c *wire.Contribution) {
			c.Want, c.Reduction = wire.WantReduced, wire.Reduction{Op: wire.ReduceSum, Kind: wire.Int64}
		},
		"no parts": func(c *wire.Contribution) { c.Want = wire.WantPart },
	} {
		t.Run(name, func(t *testing.T) {
			w := w.world(t)
			ranks := w.group(2)
			c := barrier(1)
			change(&c)
			out := fromAll(ranks, c)
			agreed(t, out...)
			is(t, out[0].err, store.ErrInvalid)
			goesOn(t, ranks, 2)
		})
	}
}
