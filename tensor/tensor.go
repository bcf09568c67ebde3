package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Tensor is a dense, row-major array. Its fields may be read; New, From and Wrap make a Tensor and
// check its fields.
type Tensor struct {
	DType DType
	Shape []int  // elements along each axis, the outermost first; empty for a scalar
	Data  []byte // Size(DType, Shape...) bytes, little-endian
}

// Allocator allocates memory for tensors, aligned for every dtype. shm.Arena is one.
type Allocator interface {
	Alloc(n int) ([]byte, error)
}

// Size returns the number of bytes of a tensor. It returns an error if the dtype or an axis is
// invalid, if the size overflows an int, or if packed elements do not fill whole bytes.
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

// New returns a tensor of zeros. Like make, it panics if dt or shape is invalid.
func New(dt DType, shape ...int) *Tensor {
	n, err := Size(dt, shape...)
	if err != nil {
		panic(err)
	}
	return &Tensor{DType: dt, Shape: slices.Clone(shape), Data: heap(n)}
}

// NewIn returns a tensor in a's memory, which is not cleared. A nil Allocator means the heap.
func NewIn(a Allocator, dt DType, shape ...int) (*Tensor, error) {
	n, err := Size(dt, shape...)
	if err != nil {
		return nil, err
	}
	if a == nil {
		return Wrap(heap(n), dt, shape...)
	}
	data, err := a.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("tensor: %v of shape %v: %w", dt, shape, err)
	}
	return Wrap(data, dt, shape...)
}

// Wrap returns a tensor that aliases data, which must have exactly its size.
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

// Check returns an error if t is nil, or if its fields are inconsistent.
func (t *Tensor) Check() error {
	if t == nil {
		return errors.New("tensor: nil")
	}
	n, err := Size(t.DType, t.Shape...)
	if err == nil && n != len(t.Data) {
		err = fmt.Errorf("tensor: %v of shape %v has %d bytes, not %d", t.DType, t.Shape, n, len(t.Data))
	}
	return err
}

// Len returns the number of elements.
func (t *Tensor) Len() int {
	n, _ := elements(t.Shape)
	return n
}

// String returns the dtype and the shape, such as "BF16[4096,4096]".
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

// Clone returns a copy that shares no memory with t.
func (t *Tensor) Clone() *Tensor {
	data := heap(len(t.Data))
	copy(data, t.Data)
	return &Tensor{DType: t.DType, Shape: slices.Clone(t.Shape), Data: data}
}

// Reshape returns t with another shape of as many elements, in the same memory.
func (t *Tensor) Reshape(shape ...int) (*Tensor, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	n, err := elements(shape)
	if err != nil {
		return nil, err
	}
	if n != t.Len() {
		return nil, fmt.Errorf("tensor: %v has %d elements, shape %v has %d", t, t.Len(), shape, n)
	}
	return Wrap(t.Data, t.DType, shape...)
}

// Equal reports whether a and b have the same dtype, shape and bytes. So a NaN equals itself, and 0
// differs from -0. Two nils are equal.
func Equal(a, b *Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.DType == b.DType && slices.Equal(a.Shape, b.Shape) && bytes.Equal(a.Data, b.Data)
}
