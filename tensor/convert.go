package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// AppendFloat32s appends t's elements, converted as by Float32sAt.
func (t *Tensor) AppendFloat32s(dst []float32) ([]float32, error) {
	if err := t.Check(); err != nil {
		return dst, err
	}
	n := t.Len()
	all := slices.Grow(dst, n)[:len(dst)+n]
	if _, err := t.Float32sAt(all[len(dst):], 0); err != nil {
		return dst, err
	}
	return all, nil
}

// Float32sAt converts elements from the index from on, in memory order, to dst, and returns their
// number. At the end of the tensor, that is less than len(dst), without an error. Integers and F64
// are rounded to the nearest float32; false is 0 and true is 1. It returns an error for C64, and
// for a Bool that is neither 0 nor 1.
func (t *Tensor) Float32sAt(dst []float32, from int) (int, error) {
	if err := t.Check(); err != nil {
		return 0, err
	}
	if from < 0 || from > t.Len() {
		return 0, fmt.Errorf("tensor: %v has no element %d", t, from)
	}
	dst = dst[:min(len(dst), t.Len()-from)]
	switch t.DType {
	case C64:
		return 0, fmt.Errorf("tensor: %v has complex numbers, which are not float32", t)
	case F4:
		decodePacked(dst, t.Data, from, 4, &tableE2M1)
	case F6E2M3:
		decodePacked(dst, t.Data, from, 6, &tableE2M3)
	case F6E3M2:
		decodePacked(dst, t.Data, from, 6, &tableE3M2)
	default:
		size := t.DType.Bits() / 8
		data := t.Data[from*size:][:len(dst)*size]
		if t.DType == Bool {
			if err := checkBools(data, from); err != nil {
				return 0, err
			}
		}
		decode(dst, t.DType, data)
	}
	return len(dst), nil
}

// decodePacked converts elements of less than a byte; the first one is element from.
func decodePacked(dst []float32, data []byte, from, width int, values *[256]float32) {
	for i := range dst {
		bit := uint64(from+i) * uint64(width)
		at, low := int(bit/8), bit%8
		code := data[at] >> low
		if int(low)+width > 8 {
			code |= data[at+1] << (8 - low)
		}
		dst[i] = values[code&(1<<width-1)]
	}
}

// decode converts len(dst) elements of whole bytes.
func decode(dst []float32, dt DType, data []byte) {
	switch dt {
	case Bool, U8:
		for i, b := range data {
			dst[i] = float32(b)
		}
	case I8:
		for i, b := range data {
			dst[i] = float32(int8(b))
		}
	case F8E8M0:
		for i, b := range data {
			dst[i] = Float8E8M0(b).Float32()
		}
	case F8E5M2:
		lookUp(dst, data, &tableE5M2)
	case F8E4M3:
		lookUp(dst, data, &tableE4M3)
	case F8E4M3FNUZ:
		lookUp(dst, data, &tableE4M3FNUZ)
	case F8E5M2FNUZ:
		lookUp(dst, data, &tableE5M2FNUZ)
	case I16, U16, F16, BF16:
		decode2(dst, dt, data)
	case I32, U32, F32:
		decode4(dst, dt, data)
	default:
		decode8(dst, dt, data)
	}
}

func lookUp(dst []float32, data []byte, values *[256]float32) {
	dst = dst[:len(data)]
	for i, b := range data {
		dst[i] = values[b]
	}
}

func decode2(dst []float32, dt DType, data []byte) {
	switch dt {
	case BF16:
		for i := range dst {
			dst[i] = BFloat16(binary.LittleEndian.Uint16(data[2*i:])).Float32()
		}
	case F16:
		for i := range dst {
			dst[i] = Float16(binary.LittleEndian.Uint16(data[2*i:])).Float32()
		}
	case I16:
		for i := range dst {
			dst[i] = float32(int16(binary.LittleEndian.Uint16(data[2*i:])))
		}
	case U16:
		for i := range dst {
			dst[i] = float32(binary.LittleEndian.Uint16(data[2*i:]))
		}
	}
}

func decode4(dst []float32, dt DType, data []byte) {
	switch dt {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case I32:
		for i := range dst {
			dst[i] = float32(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
	case U32:
		for i := range dst {
			dst[i] = float32(binary.LittleEndian.Uint32(data[4*i:]))
		}
	}
}

func decode8(dst []float32, dt DType, data []byte) {
	switch dt {
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:])))
		}
	case I64:
		for i := range dst {
			dst[i] = float32(int64(binary.LittleEndian.Uint64(data[8*i:])))
		}
	case U64:
		for i := range dst {
			dst[i] = float32(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
}
