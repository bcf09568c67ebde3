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
// order.
func Reduce(f wire.Reduction, payloads [][]byte) []byte {
	var scratch reduce.Scratch
	var copied []byte
	size, kind, op := f.Kind.Size(), numberTypes[f.Kind], reduceOps[f.Op]
	sum := slices.Clone(payloads[0])
	swap(sum, size)
	for _, b := range payloads[1:] {
		if !littleEndian || !aligned(b, size) {
			copied = append(copied[:0], b...)
			swap(copied, size)
			b = copied
		}
		reduce.Into(&scratch, kind, op, 1, sum, [][]byte{sum, b})
	}
	swap(sum, size)
	return sum
}

func aligned(b []byte, size int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(size) == 0
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// swap converts numbers of size bytes between little-endian and the byte order of this host.
func swap(b []byte, size int) {
	for i := 0; i < len(b) && !littleEndian; i += size {
		slices.Reverse(b[i : i+size])
	}
}
