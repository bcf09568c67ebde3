package core_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/muster-pg/muster/wire"
)

// TestFoldInRankOrder checks that the order of the sum is that of the ranks, not that of their
// arrival.
func TestFoldInRankOrder(t *testing.T) {
	values := []float64{1e100, 1, -1e100, 1}
	c := wire.Contribution{Verb: "allreduce", Seq: 1, Root: -1, Want: wire.WantReduced, Reduction: wire.Reduction{Op: wire.ReduceSum, Kind: wire.Float64}}
	for _, arrival := range [][]int{{0, 1, 2, 3}, {3, 1, 0, 2}} {
		w := newCrew(t, 4)
		var rep *wire.Reply
		for _, rank := range arrival {
			_, rep = w.cast(rank, c, string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(values[rank]))))
		}
		isCode(t, rep, wire.CodeOK)
		same(t, "sum", math.Float64frombits(binary.LittleEndian.Uint64(rep.Value)), 1)
	}
}
