package tensor

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Tensor is a dense, row-major array. Its fields may be read; New, From and Wrap make one, and check them.
type Tensor struct {
	DType DType
	Shape []int  // elements along each axis, the outermost first; empty is a scalar
	Data  []byte // Size(DType, Shape...) bytes, little-endian
}

// An Allocator gives memory that tensors are born in, aligned for every dtype; shm.Arena is one.
type Allocator interface {
	Alloc(n int) ([]byte, error)
}

// Size is the number of bytes of a tensor. It is an error if the dtype or an axis makes no sense, if there are more
// bytes than an int can count, or if packed elements do not fill whole bytes.
func Size(dt DType, shape ...int) (int, error) {
	if !dt.Valid() {
		return 0, fmt.Errorf("tensor: %v is not a dtype", dt)
	}
	n, err := elements(shape)
	if err != nil {
		return 0, err
	}
	hi, lo := bits.Mul64(uint64(n), uint64(dt.Bits()))
	switch {
	case hi != 0 || lo/8 > uint64(maxInt):
		return 0, fmt.Errorf("tensor: %v of shape %v is larger than memory can be", dt, shape)
	case lo%8 != 0:
		return 0, fmt.Errorf("tensor: %v of shape %v has %d bits, which is no whole number of bytes", dt, shape, lo)
	}
	return int(lo / 8), nil
}

const maxInt = int(^uint(0) >> 1)

func elements(shape []int) (int, error) {
	n := uint64(1)
	empty := slices.Contains(shape, 0)
	for axis, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("tensor: axis %d of shape %v is negative", axis, shape)
		}
		if empty {
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > uint64(maxInt) {
			return 0, fmt.Errorf("tensor: shape %v has more elements than can be counted", shape)
		}
		n = lo
	}
	if empty {
		return 0, nil
	}
	return int(n), nil
}

// New is a tensor of zeros. Like make, it panics if dt or shape make no sense.
func New(dt DType, shape ...int) *Tensor {
	n, err := Size(dt, shape...)
	if err != nil {
		panic(err)
	}
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Data: make([]byte, n)}
}

// NewIn is a tensor in a's memory, with whatever that holds.
func NewIn(a Allocator, dt DType, shape ...int) (*Tensor, error) {
	n, err := Size(dt, shape...)
	if err != nil {
		return nil, err
	}
	data, err := a.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("tensor: %v of shape %v: %w", dt, shape, err)
	}
	return Wrap(data, dt, shape...)
}

// Wrap is a tensor that aliases data, which must have exactly its size.
func Wrap(data []byte, dt DType, shape ...int) (*Tensor, error) {
	n, err := Size(dt, shape...)
	if err != nil {
		return nil, err
	}
	if len(data) != n {
		return nil, fmt.Errorf("tensor: %v of shape %v has %d bytes, not %d", dt, shape, n, len(data))
	}
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Data: data[:n:n]}, nil
}

// Check reports what is wrong with a tensor that was put together by hand; nil is wrong too.
func (t *Tensor) Check() error {
	if t == nil {
		return fmt.Errorf("tensor: nil")
	}
	n, err := Size(t.DType, t.Shape...)
	if err == nil && n != len(t.Data) {
		err = fmt.Errorf("tensor: %v of shape %v has %d bytes, not %d", t.DType, t.Shape, n, len(t.Data))
	}
	return err
}

// Len is the number of elements.
func (t *Tensor) Len() int {
	n, _ := elements(t.Shape)
	return n
}

// String is the dtype and the shape, as "BF16[4096,4096]".
func (t *Tensor) String() string {
	if t == nil {
		return "none"
	}
	var b strings.Builder
	b.WriteString(t.DType.String())
	b.WriteByte('[')
	for i, d := range t.Shape {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(d))
	}
	b.WriteByte(']')
	return b.String()
}

// Clone is a copy that shares nothing with t.
func (t *Tensor) Clone() *Tensor {
	return &Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: slices.Clone(t.Data)}
}

// Slice is the elements from ≤ i < to along axis. Along axis 0, or where every axis before it has one element, it
// shares t's memory; elsewhere it is a copy that owns only its part.
func (t *Tensor) Slice(axis, from, to int) (*Tensor, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if axis < 0 || axis >= len(t.Shape) {
		return nil, fmt.Errorf("tensor: %v has no axis %d", t, axis)
	}
	if from < 0 || to < from || to > t.Shape[axis] {
		return nil, fmt.Errorf("tensor: [%d:%d] is out of range along axis %d of %v", from, to, axis, t)
	}
	shape := slices.Clone(t.Shape)
	shape[axis] = to - from
	outer, _ := elements(t.Shape[:axis])
	inner, _ := elements(t.Shape[axis+1:])
	bit := inner * t.DType.Bits() // of one step along axis
	if outer > 1 && (bit*(to-from)%8 != 0 || bit*t.Shape[axis]%8 != 0) || bit*from%8 != 0 || bit*to%8 != 0 {
		return nil, fmt.Errorf("tensor: [%d:%d] along axis %d of %v does not begin and end on whole bytes", from, to, axis, t)
	}
	row, at, n := bit*t.Shape[axis]/8, bit*from/8, bit*(to-from)/8
	if outer == 1 {
		return &Tensor{DType: t.DType, Shape: shape, Data: t.Data[at : at+n : at+n]}, nil
	}
	part := &Tensor{DType: t.DType, Shape: shape, Data: make([]byte, 0, outer*n)}
	for i := range outer {
		part.Data = append(part.Data, t.Data[i*row+at:][:n]...)
	}
	return part, nil
}
