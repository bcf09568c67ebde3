package storetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/muster-pg/muster/wire"
)

var resultChecks = []check{
	{"parts that are no parts fail for all", resultBadParts, []Feature{Collect}},
	{"each rank gets what it asked for, whatever the others did", resultMixed, []Feature{Collect}},
	{"parts from a rank that wants none", resultUnasked, []Feature{Collect}},
	{"of a root that scatters and wants nothing: no rank gets nothing in silence", resultScatterOnly, []Feature{Collect}},
	{"folds of every kind", resultFolds, []Feature{Collect}},
	{"folds are in rank order", resultFoldOrder, []Feature{Collect}},
	{"large payloads", resultLarge, []Feature{Collect}},
	{"whose vote decided it, if that is returned", resultLast, []Feature{Collect}},
}

func resultLast(t *testing.T, w *world) {
	ranks := w.group(3)
	for seq := range uint64(3) {
		last := int(seq)
		for i := range 3 {
			if i != last {
				ranks[i].calls(t, ranks[last], barrier(seq+1))
			}
		}
		_, got, err := ranks[last].CollectLast(w.ctx, ranks[last].in(barrier(seq+1)), nil)
		good(t, err)
		if got != -1 {
			same(t, "last", got, last)
		}
	}
}

// parts returns a payload with a part for each of n ranks: "from>to".
func parts(from, n int) []byte {
	ps := make([][]byte, n)
	for to := range ps {
		ps[to] = fmt.Appendf(nil, "%d>%d", from, to)
	}
	return wire.AppendParts(nil, ps)
}

func scatter(seq uint64, root int) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "scatter", Root: root, RootOnly: true, Want: wire.WantPart}
}

func resultBadParts(t *testing.T, w *world) {
	ranks := w.group(2)
	for i, payload := range [][]byte{[]byte("no parts at all"), parts(1, 1), parts(1, 3), append(parts(1, 2), 0)} {
		c := scatter(uint64(2*i+1), 1)
		waiting := ranks[0].collectLater(t, w.ctx, c)
		v := agreed(t, ranks[1].collect(w.ctx, c, payload...), <-waiting)
		same(t, "code", v.Code, wire.CodeInvalid)
		same(t, "by", v.By, 1)
		goesOn(t, ranks, uint64(2*i+2))
	}
}

func resultMixed(t *testing.T, w *world) {
	ranks := w.group(4)
	out := together(4, func(i int) ([][]byte, error) {
		c := folding(1, wire.ReduceSum, wire.Uint32)
		c.Want = []int32{wire.WantAll, wire.WantReduced, wire.WantNothing, 1}[i]
		o := ranks[i].collect(w.ctx, c, byte(i+1), 0, 0, 0)
		return o.values, o.err
	})
	allGood(t, out)
	same(t, "all", out[0].values, [][]byte{{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 0}})
	same(t, "fold", out[1].values, [][]byte{{10, 0, 0, 0}})
	same(t, "nothing", len(out[2].values), 0)
	same(t, "one", out[3].values, [][]byte{{2, 0, 0, 0}})
}

// resultUnasked asserts that an all-to-all in which one rank wants no result either fails on all
// ranks or gives the others their parts.
func resultUnasked(t *testing.T, w *world) {
	ranks := w.group(3)
	out := together(3, func(i int) ([][]byte, error) {
		c := wire.Contribution{Seq: 1, Verb: "all-to-all", Root: -1, Want: wire.WantPart}
		if i == 1 {
			c.Want = wire.WantNothing
		}
		o := ranks[i].collect(w.ctx, c, parts(i, 3)...)
		return o.values, o.err
	})
	if out[0].err != nil {
		agreed(t, out...)
		return
	}
	allGood(t, out)
	same(t, "rank 0", texts(out[0].values), []string{"0>0", "1>0", "2>0"})
	same(t, "rank 2", texts(out[2].values), []string{"0>2", "1>2", "2>2"})
}

func resultScatterOnly(t *testing.T, w *world) {
	ranks := w.group(2)
	c := scatter(1, 0)
	c.Want = wire.WantNothing
	ranks[0].collect(w.ctx, c, parts(0, 2)...)
	reader := ranks[1].collect(w.ctx, scatter(1, 0))
	if reader.err != nil {
		failureOf(t, reader.err)
		return
	}
	same(t, "rank 1", texts(reader.values), []string{"0>1"})
}

func folding(seq uint64, op wire.ReduceOp, kind wire.NumberKind) wire.Contribution {
	return wire.Contribution{
		Seq: seq, Verb: "all-reduce", Root: -1, Want: wire.WantReduced,
		Reduction: wire.Reduction{Op: op, Kind: kind},
	}
}

type number interface {
	int32 | int64 | uint32 | uint64 | float32 | float64
}

func resultFolds(t *testing.T, w *world) {
	ranks := w.group(3)
	seq := uint64(0)
	for op := wire.ReduceSum; op <= wire.ReduceMax; op++ {
		seq += 6
		foldsOf(t, ranks, seq, op, wire.Int32, [][]int32{{1, math.MaxInt32, -4}, {2, 1, 5}, {-3, 7, math.MinInt32}})
		foldsOf(t, ranks, seq+1, op, wire.Int64, [][]int64{{1, math.MaxInt64, -4}, {2, 1, 5}, {-3, 7, math.MinInt64}})
		foldsOf(t, ranks, seq+2, op, wire.Uint32, [][]uint32{{1, math.MaxUint32}, {2, 1}, {3, 1 << 31}})
		foldsOf(t, ranks, seq+3, op, wire.Uint64, [][]uint64{{1, math.MaxUint64}, {2, 1}, {3, 1 << 63}})
		foldsOf(t, ranks, seq+4, op, wire.Float32, [][]float32{{1e8, -0.5, 3e38}, {1, 0.1, 3e38}, {-1e8, 7, -1}})
		foldsOf(t, ranks, seq+5, op, wire.Float64, [][]float64{{1e16, -0.5, 1e308}, {1, 0.1, 1e308}, {-1e16, 7, -1}})
	}
}

// foldsOf asserts that a reduction of the ranks' numbers equals that of a loop over them.
func foldsOf[T number](t *testing.T, ranks []*rank, seq uint64, op wire.ReduceOp, kind wire.NumberKind, numbers [][]T) {
	t.Helper()
	want := append([]T(nil), numbers[0]...)
	for _, ns := range numbers[1:] {
		for i, n := range ns {
			want[i] = folded(op, want[i], n)
		}
	}
	for _, o := range together(len(ranks), func(i int) ([][]byte, error) {
		o := ranks[i].collect(ranks[i].w.ctx, folding(seq, op, kind), littleEndian(numbers[i])...)
		return o.values, o.err
	}) {
		good(t, o.err)
		same(t, fmt.Sprintf("fold %d of %T", op, want), o.values, [][]byte{littleEndian(want)})
	}
}

func folded[T number](op wire.ReduceOp, a, b T) T {
	switch op {
	case wire.ReduceSum:
		return a + b
	case wire.ReduceProduct:
		return a * b
	case wire.ReduceMin:
		return min(a, b)
	}
	return max(a, b)
}

func littleEndian[T number](ns []T) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, ns)
	if err != nil {
		panic(err)
	}
	return b
}

// resultFoldOrder lets the ranks arrive in every order: the sum has the same bits.
func resultFoldOrder(t *testing.T, w *world) {
	ranks := w.group(3)
	numbers := [][]float64{{1e16, 0.1}, {1, 0.2}, {-1e16, 0.3}}
	want := littleEndian([]float64{numbers[0][0] + numbers[1][0] + numbers[2][0], numbers[0][1] + numbers[1][1] + numbers[2][1]})
	for i, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		c := folding(uint64(i+1), wire.ReduceSum, wire.Float64)
		var waiting []<-chan outcome
		for k, n := range order {
			waiting = append(waiting, ranks[n].collectLater(t, w.ctx, c, littleEndian(numbers[n])...))
			if k < 2 {
				ranks[n].seen(t, ranks[order[2]], c.Verb)
			}
		}
		for _, ch := range waiting {
			o := <-ch
			good(t, o.err)
			same(t, "sum", o.values, [][]byte{want})
		}
	}
}

func resultLarge(t *testing.T, w *world) {
	ranks := w.group(3)
	const size = 4 << 20
	for _, o := range together(3, func(i int) ([][]byte, error) {
		o := ranks[i].collect(w.ctx, allGather(1), big(size+i)...)
		return o.values, o.err
	}) {
		good(t, o.err)
		for i, v := range o.values {
			same(t, "whole", string(v) == string(big(size+i)), true)
		}
	}
}
