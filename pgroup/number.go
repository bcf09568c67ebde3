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

// Number is what AllReduce can combine.
type Number interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Op is a reduction.
type Op uint8

const (
	Sum Op = iota // integers wrap around, as Go's do
	Product
	Min // a NaN anywhere is a NaN
	Max
	// Avg is Sum divided by Size, as Go divides: that of integers is truncated toward 0. Integers of 32 bits or fewer are summed as 64-bit ones, so the
	// average is always right; the sum of 64-bit integers wraps around, as Sum does.
	Avg
)

var folds = [...]struct {
	name string
	fold wire.ReduceOp
}{
	Sum: {"sum", wire.ReduceSum}, Avg: {"avg", wire.ReduceSum}, Product: {"product", wire.ReduceProduct},
	Min: {"min", wire.ReduceMin}, Max: {"max", wire.ReduceMax},
}

// String is the reduction's name.
func (op Op) String() string {
	if int(op) < len(folds) {
		return folds[op].name
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// AllReduce returns, on every rank, the numbers of all ranks combined by op: as many as each rank passes, which must
// be equally many, or none. They are combined in rank order, so that every rank has the same bits. It is meant
// for a few numbers; tensors go through package collective.
func AllReduce[T Number](ctx context.Context, g *Group, op Op, vs ...T) ([]T, error) {
	kind := numberKind[T]()
	cl := call{Group: g, c: wire.Contribution{Verb: "allreduce", Root: -1, Type: typeName[T](), Want: wire.WantReduced}}
	if err := cl.begin(); err != nil {
		return nil, err
	}
	defer cl.end()
	cl.c.Label = op.String() + " of " + strconv.Itoa(len(vs))
	var payload []byte
	if int(op) < len(folds) {
		if op == Avg {
			kind = wideKind(kind)
		}
		cl.c.Reduction = wire.Reduction{Op: folds[op].fold, Kind: kind}
		payload = encodeNumbers(&cl, kind, vs)
	} else {
		cl.refuse(wire.CodeInvalid, fmt.Errorf("there is no reduction %d", uint8(op)))
		cl.c.Want = wire.WantNothing
	}
	got, err := cl.cast(ctx, payload)
	if err != nil {
		return nil, err
	}
	if err := cl.want(1, got); err != nil {
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
}

// wideKind is what numbers of a kind are summed as for their average.
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

// encodeNumbers gives the bytes of vs, in the group's room.
func encodeNumbers[T Number](cl *call, kind wire.NumberKind, vs []T) []byte {
	if err := checkSize(len(vs) * kind.Size()); err != nil {
		cl.refuse(wire.CodeTooLarge, err)
		return nil
	}
	b := appendNumbers(cl.buf[:0], kind, vs)
	cl.keep(b)
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
	return wire.Int64 // int too, so that machines agree
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
