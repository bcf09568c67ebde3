package tensor

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"
)

// Number is the element types with arithmetic. It has no ~, since the exact type determines the
// dtype.
type Number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | Float16 | BFloat16
}

// Element is the Go types that a tensor can be viewed as. The floats of 8 bits, whose codes are the bytes of
// Data, have none, and neither have F4, F6E2M3 and F6E3M2, which are packed.
type Element interface {
	Number | bool | complex64
}

// DTypeOf returns the dtype of T.
func DTypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case bool:
		return Bool
	case uint8:
		return U8
	case int8:
		return I8
	case int16:
		return I16
	case uint16:
		return U16
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case int32:
		return I32
	case uint32:
		return U32
	case float32:
		return F32
	case complex64:
		return C64
	case float64:
		return F64
	case int64:
		return I64
	case uint64:
		return U64
	}
	return Invalid
}

// From returns a tensor that aliases data. Without a shape it has one axis. Like make, it panics if
// data does not have as many elements as the shape. It also panics on a big-endian host if an
// element has more than one byte, since data does not have a tensor's byte order there; use
// Wrap instead.
func From[T Element](data []T, shape ...int) *Tensor {
	dt := DTypeOf[T]()
	if len(shape) == 0 {
		shape = []int{len(data)}
	}
	n, err := elements(shape)
	if err == nil && n != len(data) {
		err = fmt.Errorf("tensor: %v of shape %v has %d elements, not %d", dt, shape, n, len(data))
	}
	if err == nil {
		err = sameOrder(dt)
	}
	if err != nil {
		panic(err)
	}
	size := len(data) * dt.Bits() / 8
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Data: unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), size)}
}

// View returns t's elements, in t's memory. It returns an error if T is not t's dtype, if the
// memory is not aligned for T (a Clone is aligned), if the host is big-endian and an element has
// more than one byte, or if T is bool and a byte is neither 0 nor 1.
func View[T Element](t *Tensor) ([]T, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if dt := DTypeOf[T](); dt != t.DType {
		return nil, fmt.Errorf("tensor: %v cannot be viewed as %v", t, dt)
	}
	if err := sameOrder(t.DType); err != nil {
		return nil, err
	}
	var zero T
	p := unsafe.Pointer(unsafe.SliceData(t.Data))
	if align := unsafe.Alignof(zero); uintptr(p)%align != 0 {
		return nil, fmt.Errorf("tensor: %v is not aligned to %d bytes: view a Clone", t, align)
	}
	if t.DType == Bool {
		if err := checkBools(t.Data); err != nil {
			return nil, err
		}
	}
	return unsafe.Slice((*T)(p), t.Len()), nil
}

// sameOrder returns an error if the host's byte order differs from that of tensors, for elements of
// dt.
func sameOrder(dt DType) error {
	if dt.Bits() > 8 && binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return fmt.Errorf("tensor: %v is little-endian and this host is not: convert it instead of viewing it", dt)
	}
	return nil
}

// checkBools returns an error if a byte is not a bool.
func checkBools(data []byte) error {
	for i, b := range data {
		if b > 1 {
			return fmt.Errorf("tensor: element %d of BOOL is the byte %#x, neither 0 nor 1", i, b)
		}
	}
	return nil
}

// heap returns n bytes of zeros that are aligned for every dtype, which make([]byte, n) does not
// guarantee.
func heap(n int) []byte {
	words := make([]uint64, n/8+(n%8+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}
