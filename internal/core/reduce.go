package core

import (
	"encoding/binary"
	"math"

	"github.com/muster-pg/muster/wire"
)

// number is the set of types that a reduction supports.
type number interface {
	int32 | int64 | uint32 | uint64 | float32 | float64
}

// Reduce sets a[i] = a[i] op b[i] for all numbers of a and b, which are little-endian and have the
// same length in bytes.
func Reduce(f wire.Reduction, a, b []byte) {
	switch f.Kind {
	case wire.Int32:
		reduce32(f.Op, a, b, func(u uint32) int32 { return int32(u) }, func(v int32) uint32 { return uint32(v) })
	case wire.Uint32:
		reduce32(f.Op, a, b, func(u uint32) uint32 { return u }, func(v uint32) uint32 { return v })
	case wire.Float32:
		reduce32(f.Op, a, b, math.Float32frombits, math.Float32bits)
	case wire.Int64:
		reduce64(f.Op, a, b, func(u uint64) int64 { return int64(u) }, func(v int64) uint64 { return uint64(v) })
	case wire.Uint64:
		reduce64(f.Op, a, b, func(u uint64) uint64 { return u }, func(v uint64) uint64 { return v })
	case wire.Float64:
		reduce64(f.Op, a, b, math.Float64frombits, math.Float64bits)
	}
}

func reduce32[T number](op wire.ReduceOp, a, b []byte, from func(uint32) T, to func(T) uint32) {
	le := binary.LittleEndian
	for i := 0; i+4 <= len(a); i += 4 {
		le.PutUint32(a[i:], to(combine(op, from(le.Uint32(a[i:])), from(le.Uint32(b[i:])))))
	}
}

func reduce64[T number](op wire.ReduceOp, a, b []byte, from func(uint64) T, to func(T) uint64) {
	le := binary.LittleEndian
	for i := 0; i+8 <= len(a); i += 8 {
		le.PutUint64(a[i:], to(combine(op, from(le.Uint64(a[i:])), from(le.Uint64(b[i:])))))
	}
}

// combine is one step of a reduction. Integers wrap, and min and max are those of Go: a NaN stays a
// NaN.
func combine[T number](op wire.ReduceOp, x, y T) T {
	switch op {
	case wire.ReduceProduct:
		return x * y
	case wire.ReduceMin:
		return min(x, y)
	case wire.ReduceMax:
		return max(x, y)
	}
	return x + y
}
