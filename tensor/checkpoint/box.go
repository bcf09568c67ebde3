package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// box is a block of a tensor: shape[i] elements along axis i, from start[i] on. Both have an entry for
// each axis; a box of no axes has one element.
//
// Boxes of bytes have an axis more, so that elements of any size are alike: see toBytes.
type box struct{ start, shape []int }

// whole returns the box of a tensor.
func whole(shape []int) box { return box{make([]int, len(shape)), shape} }

func (b box) String() string {
	return fmt.Sprintf("[%s] at [%s]", numbers(b.shape), numbers(b.start))
}

func numbers(ns []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ns), " ", ","), "[]")
}

func (b box) end(axis int) int { return b.start[axis] + b.shape[axis] }

// check returns an error unless b is a box of a tensor of so many axes.
func (b box) check(axes int) error {
	if len(b.start) != len(b.shape) || len(b.shape) != axes {
		return fmt.Errorf("a part of %d axes begins at %d numbers, in a tensor of %d axes", len(b.shape), len(b.start), axes)
	}
	for i, n := range b.shape {
		if n < 0 || b.start[i] < 0 || b.start[i] > math.MaxInt-n {
			return fmt.Errorf("a part %v", b)
		}
	}
	return nil
}

// within reports whether b is in a tensor of a shape.
func (b box) within(shape []int) bool {
	for i, n := range shape {
		if b.start[i] < 0 || b.shape[i] < 0 || b.shape[i] > n-b.start[i] {
			return false
		}
	}
	return true
}

// size returns how many elements b has.
func (b box) size() int {
	n := 1
	for _, d := range b.shape {
		n *= d
	}
	return n
}

// and returns what b and c have in common, which may be empty.
func (b box) and(c box) box {
	x := box{make([]int, len(b.shape)), make([]int, len(b.shape))}
	for i := range b.shape {
		x.start[i] = max(b.start[i], c.start[i])
		x.shape[i] = max(0, min(b.end(i), c.end(i))-x.start[i])
	}
	return x
}

// split returns the first n elements of b along an axis, and the others.
func (b box) split(axis, n int) (box, box) {
	first, second := box{b.start, slices.Clone(b.shape)}, box{slices.Clone(b.start), slices.Clone(b.shape)}
	first.shape[axis] = n
	second.start[axis] += n
	second.shape[axis] -= n
	return first, second
}

// toBytes returns the box of the bytes of b, whose elements have so many bits. It has one axis more, that of
// the bytes of an element, or of the least number of elements that are whole bytes: these count as one along
// the last axis.
func (b box) toBytes(bits int) (box, error) {
	x := box{slices.Clone(b.start), slices.Clone(b.shape)}
	bytes := bits / 8
	if bits%8 != 0 {
		n := 8 / (bits & -bits)
		bytes = bits * n / 8
		last := len(x.shape) - 1
		if last < 0 || x.start[last]%n != 0 || x.shape[last]%n != 0 {
			return x, fmt.Errorf("a part %v of elements of %d bits, whose rows are no whole bytes", b, bits)
		}
		x.start[last] /= n
		x.shape[last] /= n
	}
	return box{append(x.start, 0), append(x.shape, bytes)}, nil
}

// array is a box whose elements are in memory, or in a file: strides[i] are from one to the next along axis i.
type array struct {
	box
	strides []int
}

// rowMajor returns b with its last axis varying fastest.
func rowMajor(b box) array {
	a, n := array{b, make([]int, len(b.shape))}, 1
	for i := len(b.shape) - 1; i >= 0; i-- {
		a.strides[i] = n
		n *= b.shape[i]
	}
	return a
}

// at returns how far the first element of x is from the first of a.
func (a array) at(x box) (n int) {
	for i, s := range a.strides {
		n += (x.start[i] - a.start[i]) * s
	}
	return n
}

// span returns how many elements of a are from the first of x to its last, both included.
func (a array) span(x box) int {
	n := 1
	for i, s := range a.strides {
		n += (x.shape[i] - 1) * s
	}
	return n
}

// halves splits x, which has several elements, along the axis on which its elements are farthest apart in a.
func (a array) halves(x box) (box, box) {
	axis, most := 0, -1
	for i, s := range a.strides {
		if n := (x.shape[i] - 1) * s; n > most {
			axis, most = i, n
		}
	}
	return x.split(axis, x.shape[axis]/2)
}

// inRuns yields the blocks of a tensor that are contiguous in it and have at most so many elements, in
// row-major order.
func inRuns(shape []int, most int, yield func(box) error) error {
	b := whole(shape)
	if b.size() == 0 {
		return nil
	}
	var visit func(b box) error
	visit = func(b box) error {
		i := slices.IndexFunc(b.shape, func(n int) bool { return n > 1 })
		if i < 0 || b.size() <= most {
			return yield(b)
		}
		row := b.size() / b.shape[i]
		for n := max(1, most/row); b.shape[i] > n; {
			var first box
			first, b = b.split(i, n)
			if err := visit(first); err != nil {
				return err
			}
		}
		return visit(b)
	}
	return visit(b)
}
