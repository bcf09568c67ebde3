package pickle

import (
	"math/bits"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

// layout describes where the elements of an array are in its bytes.
type layout struct {
	shape   []int
	strides []int // in elements
	offset  int   // in elements
}

// rowMajor returns the strides of a shape whose last axis varies fastest; columnMajor those of one
// whose first axis does.
func rowMajor(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return strides
}

func columnMajor(shape []int) []int {
	strides := make([]int, len(shape))
	n := 1
	for i, d := range shape {
		strides[i] = n
		n *= d
	}
	return strides
}

// gather returns a tensor of the elements of data that l selects, in row-major order.
func (m *machine) gather(dt tensor.DType, data []byte, l layout) (*tensor.Tensor, error) {
	size, err := tensor.Size(dt, l.shape...)
	if err != nil {
		return nil, m.malformed("%v", err)
	}
	width := dt.Bits() / 8
	if size > 0 {
		last, ok := l.last()
		if !ok || last >= uint64(len(data)/width) {
			return nil, m.malformed("%v of shape %v with strides %v from element %d does not fit in %d bytes",
				dt, l.shape, l.strides, l.offset, len(data))
		}
	}
	if err := m.spend(size + word*len(l.shape)); err != nil {
		return nil, err
	}
	t := tensor.New(dt, l.shape...)
	if size > 0 {
		l = l.bare()
		copyStrided(t.Data, data[l.offset*width:], l.shape, l.strides, width)
	}
	return t, nil
}

// bare returns l without its axes of one element: a pickle may have many of them, and each would
// cost time for each element.
func (l layout) bare() layout {
	b := layout{offset: l.offset}
	for i, d := range l.shape {
		if d != 1 {
			b.shape, b.strides = append(b.shape, d), append(b.strides, l.strides[i])
		}
	}
	return b
}

// last returns the index of the last element; ok is false if it overflows. No axis is empty.
func (l layout) last() (at uint64, ok bool) {
	const most = 1 << 61
	at = uint64(l.offset)
	for i, d := range l.shape {
		hi, lo := bits.Mul64(uint64(d-1), uint64(l.strides[i]))
		if hi != 0 || lo > most || at > most {
			return 0, false
		}
		at += lo
	}
	return at, true
}

// copyStrided copies elements into dst, row by row, and returns the rest of dst.
func copyStrided(dst, src []byte, shape, strides []int, width int) []byte {
	switch {
	case slices.Equal(strides, rowMajor(shape)):
		n := width
		for _, d := range shape {
			n *= d
		}
		return dst[copy(dst[:n], src):]
	case len(shape) == 1:
		for i := range shape[0] {
			dst = dst[copy(dst[:width], src[i*strides[0]*width:]):]
		}
		return dst
	}
	for i := range shape[0] {
		dst = copyStrided(dst, src[i*strides[0]*width:], shape[1:], strides[1:], width)
	}
	return dst
}

// shape returns the axes in a tuple.
func (m *machine) shape(v any) ([]int, error) {
	t, ok := v.(*tuple)
	if !ok {
		return nil, m.malformed("a shape that is a %s", kind(v))
	}
	if len(t.items) > maxRank {
		return nil, m.fail(ErrTooLarge, "an array of %d axes, the limit is %d", len(t.items), maxRank)
	}
	shape := make([]int, len(t.items))
	for i, item := range t.items {
		d, ok := item.(int64)
		if !ok || d < 0 || int64(int(d)) != d {
			return nil, m.malformed("axis %d of a shape or its stride is %s", i, brief(item))
		}
		shape[i] = int(d)
	}
	return shape, nil
}
