package core_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

func folds[T any](t *testing.T, kind wire.NumberKind, a, b []T, sum, product, low, high []T) {
	t.Helper()
	for op, want := range map[wire.ReduceOp][]T{wire.ReduceSum: sum, wire.ReduceProduct: product, wire.ReduceMin: low, wire.ReduceMax: high} {
		same(t, fmt.Sprintf("fold %d of %v and %v", op, a, b), fmt.Sprint(fold(t, op, kind, a, b)), fmt.Sprint(want))
	}
}

// TestFolds checks every operation on every kind of number. Integers wrap around, and a NaN stays a
// NaN.
func TestFolds(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	folds(t, wire.Int32, []int32{3, -7, math.MaxInt32}, []int32{-5, 2, 1}, []int32{-2, -5, math.MinInt32}, []int32{-15, -14, math.MaxInt32}, []int32{-5, -7, 1}, []int32{3, 2, math.MaxInt32})
	folds(t, wire.Uint32, []uint32{3, math.MaxUint32}, []uint32{5, 2}, []uint32{8, 1}, []uint32{15, math.MaxUint32 - 1}, []uint32{3, 2}, []uint32{5, math.MaxUint32})
	folds(t, wire.Int64, []int64{3, math.MaxInt64}, []int64{-5, 1}, []int64{-2, math.MinInt64}, []int64{-15, math.MaxInt64}, []int64{-5, 1}, []int64{3, math.MaxInt64})
	folds(t, wire.Uint64, []uint64{3, math.MaxUint64}, []uint64{5, 2}, []uint64{8, 1}, []uint64{15, math.MaxUint64 - 1}, []uint64{3, 2}, []uint64{5, math.MaxUint64})
	folds(t, wire.Float32, []float32{1.5, -2}, []float32{2, 0.25}, []float32{3.5, -1.75}, []float32{3, -0.5}, []float32{1.5, -2}, []float32{2, 0.25})
	folds(t, wire.Float64, []float64{1.5, nan, inf}, []float64{2, 1, 1}, []float64{3.5, nan, inf}, []float64{3, nan, inf}, []float64{1.5, nan, 1}, []float64{2, nan, inf})
	folds(t, wire.Float64, []float64{1}, []float64{nan}, []float64{nan}, []float64{nan}, []float64{nan}, []float64{nan})
	folds(t, wire.Int64, []int64{}, []int64{}, []int64{}, []int64{}, []int64{}, []int64{})
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

func TestFoldOfUnequalLengths(t *testing.T) {
	w := newCrew(t, 2)
	c := wire.Contribution{Verb: "allreduce", Seq: 1, Root: -1, Want: wire.WantReduced, Reduction: wire.Reduction{Op: wire.ReduceSum, Kind: wire.Int64}}
	first, _ := w.cast(0, c, "12345678")
	_, rep := w.cast(1, c, "1234567812345678")
	isCode(t, rep, wire.CodeInvalid)
	same(t, "by", rep.Failure.By, 1)
	contains(t, rep.Failure.Reason, "2 numbers, rank 0 has 1")
	same(t, "both get the same", w.answer(first).Failure, rep.Failure)
}
