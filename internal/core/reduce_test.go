package core_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/muster-pg/muster/wire"
)

// fold lets one rank for each of vs contribute it, and returns the reduction.
func fold[T any](t *testing.T, op wire.ReduceOp, kind wire.NumberKind, vs ...[]T) []T {
	t.Helper()
	w := newCrew(t, len(vs))
	var rep *wire.Reply
	for rank, v := range vs {
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
		c := wire.Contribution{Verb: "allreduce", Seq: 1, Root: -1, Want: wire.WantReduced, Reduction: wire.Reduction{Op: op, Kind: kind}}
		_, rep = w.cast(rank, c, b.String())
	}
	isCode(t, rep, wire.CodeOK)
	out := make([]T, len(vs[0]))
	if err := binary.Read(bytes.NewReader(rep.Value), binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFoldInRankOrder checks that the order of the sum is that of the ranks, not that of their
// arrival.
func TestFoldInRankOrder(t *testing.T) {
	vs := [][]float64{{1e100}, {1}, {-1e100}, {1}}
	same(t, "sum", fold(t, wire.ReduceSum, wire.Float64, vs...)[0], 1)
	w := newCrew(t, 4)
	var rep *wire.Reply
	for _, rank := range []int{3, 1, 0, 2} {
		c := wire.Contribution{Verb: "allreduce", Seq: 1, Root: -1, Want: wire.WantReduced, Reduction: wire.Reduction{Op: wire.ReduceSum, Kind: wire.Float64}}
		_, rep = w.cast(rank, c, string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(vs[rank][0]))))
	}
	same(t, "sum", math.Float64frombits(binary.LittleEndian.Uint64(rep.Value)), 1)
}
