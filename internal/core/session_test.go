package core_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// TestNumbers checks how many answers are kept for a client that does not acknowledge them.
func TestNumbers(t *testing.T) {
	r := newRig(t)
	r.m.SetBounds(core.Bounds{Unacked: 3})
	s := r.session()
	add := func(n, acked uint64) *wire.Reply {
		return r.does(s, wire.Request{Op: wire.OpAdd, Number: n, Acked: acked, Key: "n", Add: 1})
	}
	for n := range int64(3) {
		same(t, "sum", add(uint64(n+1), 0).N, n+1)
	}
	isCode(t, add(4, 0), wire.CodeFull)
	same(t, "sum", add(4, 2).N, 4)
	same(t, "an answer that no client can have received", add(5, 99).N, 5)
}
