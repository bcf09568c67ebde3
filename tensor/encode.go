package tensor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// FromFloat32s returns a tensor of vals, converted to dt. Without a shape it has one axis. Floats
// are rounded as by Float16From and the like; F4, F6E2M3 and F6E3M2 saturate, infinities included.
// It returns an error for a value that rounding cannot convert:
//
//   - integer types: a fraction, or a value out of range
//   - Bool: any value but 0 and 1
//   - F4, F6E2M3 and F6E3M2: NaN
//   - C64: any value
func FromFloat32s(dt DType, vals []float32, shape ...int) (*Tensor, error) {
	if len(shape) == 0 {
		shape = []int{len(vals)}
	}
	size, err := Size(dt, shape...)
	if err != nil {
		return nil, err
	}
	t := &Tensor{DType: dt, Shape: slices.Clone(shape)}
	if t.Len() != len(vals) {
		return nil, fmt.Errorf("tensor: %v has %d elements, not %d", t, t.Len(), len(vals))
	}
	if dt == C64 {
		return nil, fmt.Errorf("tensor: %v has complex numbers, not float32", t)
	}
	t.Data = heap(size)
	if i, err := encode(t.Data, dt, vals); err != nil {
		return nil, fmt.Errorf("tensor: element %d of %v is %v: %w", i, t, vals[i], err)
	}
	return t, nil
}

// Why a float32 cannot be converted.
var (
	errNoBool    = errors.New("a bool is 0 or 1")
	errNoNaN     = errors.New("the dtype has no NaN")
	errNoInteger = errors.New("the dtype has only integers, and not this one")
)

// encode converts vals into data. With an error it returns the index of the value at fault.
func encode(data []byte, dt DType, vals []float32) (int, error) {
	switch dt {
	case F4:
		return encodePacked(data, 4, &float4, vals)
	case F6E2M3:
		return encodePacked(data, 6, &float6E2M3, vals)
	case F6E3M2:
		return encodePacked(data, 6, &float6E3M2, vals)
	case Bool:
		return encodeBools(data, vals)
	case U8, U16, U32, U64:
		return encodeIntegers(data, dt.Bits()/8, 0, math.Ldexp(1, dt.Bits()), vals)
	case I8, I16, I32, I64:
		half := math.Ldexp(1, dt.Bits()-1)
		return encodeIntegers(data, dt.Bits()/8, -half, half, vals)
	}
	encodeFloats(data, dt, vals)
	return 0, nil
}

func encodePacked(data []byte, width int, f *format, vals []float32) (int, error) {
	for i, v := range vals {
		if v != v {
			return i, errNoNaN
		}
		bit := uint64(i) * uint64(width)
		at, code := bit/8, f.encode(v)<<(bit%8)
		data[at] |= byte(code)
		if code > 0xff {
			data[at+1] |= byte(code >> 8)
		}
	}
	return 0, nil
}

func encodeBools(data []byte, vals []float32) (int, error) {
	for i, v := range vals {
		switch v {
		case 0:
		case 1:
			data[i] = 1
		default:
			return i, errNoBool
		}
	}
	return 0, nil
}

// encodeIntegers converts to integers of size bytes; a value v must have from ≤ v < to.
func encodeIntegers(data []byte, size int, from, to float64, vals []float32) (int, error) {
	var word [8]byte
	for i, v := range vals {
		f := float64(v)
		if f != math.Trunc(f) || f < from || f >= to { // true for NaN, which is not equal to itself
			return i, errNoInteger
		}
		n := uint64(int64(f))
		if f >= 1<<63 {
			n = uint64(f)
		}
		binary.LittleEndian.PutUint64(word[:], n)
		copy(data[i*size:], word[:size])
	}
	return 0, nil
}

func encodeFloats(data []byte, dt DType, vals []float32) {
	switch dt {
	case F8E8M0:
		for i, v := range vals {
			data[i] = byte(Float8E8M0From(v))
		}
	case F8E5M2:
		encodeBytes(data, &float8E5M2, vals)
	case F8E4M3:
		encodeBytes(data, &float8E4M3, vals)
	case F8E4M3FNUZ:
		encodeBytes(data, &float8E4M3FNUZ, vals)
	case F8E5M2FNUZ:
		encodeBytes(data, &float8E5M2FNUZ, vals)
	case F16:
		for i, v := range vals {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(Float16From(v)))
		}
	case BF16:
		for i, v := range vals {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(BFloat16From(v)))
		}
	case F32:
		for i, v := range vals {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
		}
	case F64:
		for i, v := range vals {
			binary.LittleEndian.PutUint64(data[8*i:], math.Float64bits(float64(v)))
		}
	}
}

func encodeBytes(data []byte, f *format, vals []float32) {
	for i, v := range vals {
		data[i] = byte(f.encode(v))
	}
}
