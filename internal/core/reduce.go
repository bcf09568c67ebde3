package core

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

var reduceOps = [...]reduce.Op{wire.ReduceSum: reduce.Sum, wire.ReduceProduct: reduce.Product, wire.ReduceMin: reduce.Min, wire.ReduceMax: reduce.Max}

var numberTypes = [...]tensor.DType{
	wire.Int32: tensor.I32, wire.Int64: tensor.I64, wire.Uint32: tensor.U32, wire.Uint64: tensor.U64, wire.Float32: tensor.F32, wire.Float64: tensor.F64,
}

// Reduce returns the reduction of payloads, little-endian numbers of the same length, in their
// order. It may replace elements of the slice by copies.
func Reduce(f wire.Reduction, payloads [][]byte) []byte {
	size := f.Kind.Size()
	for i, b := range payloads {
		payloads[i] = native(b, size)
	}
	var scratch reduce.Scratch
	sum := make([]byte, len(payloads[0]))
	reduce.Into(&scratch, numberTypes[f.Kind], reduceOps[f.Op], 1, sum, payloads)
	return native(sum, size)
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// native returns numbers of size bytes in the byte order of this host, at an address that is
// aligned for them: b itself, or a copy.
func native(b []byte, size int) []byte {
	if littleEndian && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(size) == 0 {
		return b
	}
	b = slices.Clone(b)
	for i := 0; i < len(b) && !littleEndian; i += size {
		slices.Reverse(b[i : i+size])
	}
	return b
}
