package pgroup

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"github.com/muster-pg/muster/wire"
)

// Number is the set of types that AllReduce supports.
type Number interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Op is a reduction operator.
type Op uint8

const (
	Sum Op = iota // integers wrap around, as in Go
	Product
	Min // NaN if any number is NaN; so is Max
	Max
	// Avg is Sum divided by Size, as Go divides: integers are truncated toward 0. Integers of at
	// most 32 bits are summed as 64-bit ones, so that the average is exact; the sum of 64-bit
	// integers wraps around.
	Avg
)

var reductions = [...]struct {
	name string
	fold wire.ReduceOp
}{
	Sum: {"sum", wire.ReduceSum}, Avg: {"avg", wire.ReduceSum}, Product: {"product", wire.ReduceProduct},
	Min: {"min", wire.ReduceMin}, Max: {"max", wire.ReduceMax},
}

// String returns the name of the operator.
func (op Op) String() string {
	if int(op) < len(reductions) {
		return reductions[op].name
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// AllReduce returns, on all ranks, the numbers of all ranks reduced by op, element by element. All
// ranks must pass the same count, which may be 0. The order of reduction is that of ranks, so all
// ranks, and all runs, get the same bits. It is meant for a few numbers; use package collective for
// tensors.
func AllReduce[T Number](ctx context.Context, g *Group, op Op, vs ...T) ([]T, error) {
	kind := numberKind[T]()
	if op == Avg {
		kind = wideKind(kind)
	}
	c := wire.Contribution{Verb: "allreduce", Root: -1, Type: typeName[T](), Label: op.String() + " of " + strconv.Itoa(len(vs)), Want: wire.WantReduced}
	return collective(ctx, g, c, func(cl *call) []byte {
		if int(op) >= len(reductions) {
			cl.refuse(wire.CodeInvalid, fmt.Errorf("there is no reduction %d", uint8(op)))
			cl.c.Want = wire.WantNothing
			return nil
		}
		cl.c.Reduction = wire.Reduction{Op: reductions[op].fold, Kind: kind}
		return encodeNumbers(cl, kind, vs)
	}, func(cl *call, got [][]byte) ([]T, error) {
		if err := cl.checkCount(1, got); err != nil {
			return nil, err
		}
		switch {
		case op != Avg:
			return parseNumbers[T](got[0], kind), nil
		case kind == wire.Int64:
			return averages[T](parseNumbers[int64](got[0], kind), g.size), nil
		case kind == wire.Uint64:
			return averages[T](parseNumbers[uint64](got[0], kind), g.size), nil
		}
		return averages[T](parseNumbers[T](got[0], kind), g.size), nil
	})
}

// wideKind returns the kind as which numbers are summed for an average.
func wideKind(kind wire.NumberKind) wire.NumberKind {
	switch kind {
	case wire.Int32:
		return wire.Int64
	case wire.Uint32:
		return wire.Uint64
	}
	return kind
}

func averages[T, S Number](sums []S, n int) []T {
	all := make([]T, len(sums))
	for i, sum := range sums {
		all[i] = T(sum / S(n))
	}
	return all
}

// encodeNumbers encodes vs in the group's buffer.
func encodeNumbers[T Number](cl *call, kind wire.NumberKind, vs []T) []byte {
	if err := checkSize(len(vs) * kind.Size()); err != nil {
		cl.refuse(wire.CodeTooLarge, err)
		return nil
	}
	b := appendNumbers(cl.buf[:0], kind, vs)
	cl.keepBuffer(b)
	return b
}

func numberKind[T Number]() wire.NumberKind {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Int32:
		return wire.Int32
	case reflect.Uint32:
		return wire.Uint32
	case reflect.Uint64:
		return wire.Uint64
	case reflect.Float32:
		return wire.Float32
	case reflect.Float64:
		return wire.Float64
	}
	return wire.Int64 // int too, so that 32-bit and 64-bit machines agree
}

// appendNumbers appends vs in little-endian order.
func appendNumbers[T Number](b []byte, kind wire.NumberKind, vs []T) []byte {
	le := binary.LittleEndian
	for _, v := range vs {
		switch kind {
		case wire.Float32:
			b = le.AppendUint32(b, math.Float32bits(float32(v)))
		case wire.Float64:
			b = le.AppendUint64(b, math.Float64bits(float64(v)))
		case wire.Int32, wire.Uint32:
			b = le.AppendUint32(b, uint32(v))
		default:
			b = le.AppendUint64(b, uint64(v))
		}
	}
	return b
}

func parseNumbers[T Number](b []byte, kind wire.NumberKind) []T {
	le := binary.LittleEndian
	size := kind.Size()
	vs := make([]T, len(b)/size)
	for i := range vs {
		p := b[i*size:]
		switch kind {
		case wire.Float32:
			vs[i] = T(math.Float32frombits(le.Uint32(p)))
		case wire.Float64:
			vs[i] = T(math.Float64frombits(le.Uint64(p)))
		case wire.Int32, wire.Uint32:
			vs[i] = T(le.Uint32(p))
		default:
			vs[i] = T(le.Uint64(p))
		}
	}
	return vs
}
