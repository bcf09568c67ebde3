package reduce

import (
	"math"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

// narrow has the conversions of integers of less than 64 bits to int64 and back.
var narrow = map[tensor.DType]struct{ widen, narrow func(dst, src []byte) }{
	tensor.I8:  {convert[int64, int8], convert[int8, int64]},
	tensor.I16: {convert[int64, int16], convert[int16, int64]},
	tensor.I32: {convert[int64, int32], convert[int32, int64]},
	tensor.U8:  {convert[int64, uint8], convert[uint8, int64]},
	tensor.U16: {convert[int64, uint16], convert[uint16, int64]},
	tensor.U32: {convert[int64, uint32], convert[uint32, int64]},
}

// IsNarrow reports whether dt is an integer type of less than 64 bits, whose sum may overflow
// although the average does not.
func IsNarrow(dt tensor.DType) bool {
	_, ok := narrow[dt]
	return ok
}

// WidenInts converts src, integers of the narrow type dt, to int64s in dst.
func WidenInts(dt tensor.DType, dst, src []byte) { narrow[dt].widen(dst, src) }

// NarrowInts converts src, int64s that fit into the narrow type dt, to integers of dt in dst.
func NarrowInts(dt tensor.DType, dst, src []byte) { narrow[dt].narrow(dst, src) }

func convert[D, S tensor.Number](dst, src []byte) {
	widen(as[D](dst), as[S](src), func(v S) D { return D(v) })
}

// Overflows reports whether x, float32s, has an infinity, or a NaN as the sum of two infinities.
func Overflows(x []byte) bool {
	return slices.ContainsFunc(as[float32](x), func(v float32) bool { return !finite(v) })
}

func finite(v float32) bool { return math.Float32bits(v)&0x7f800000 != 0x7f800000 }

// Scale divides float32s by div.
func Scale(x []byte, div int) { divide(as[float32](x), div) }
