// Package blocks assembles tensors, or blocks of them, from the parts that others have of them: files, or ranks.
package blocks

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Box is a block of a tensor: shape[i] elements along axis i, from start[i] on. Both have an entry for
// each axis; a box of no axes has one element.
//
// Boxes of bytes have an axis more, so that elements of any size are alike: see ToBytes.
type Box struct{ Start, Shape []int }

// Whole returns the box of a tensor.
func Whole(shape []int) Box { return Box{make([]int, len(shape)), shape} }

func (b Box) String() string {
	return fmt.Sprintf("[%s] at [%s]", Numbers(b.Shape), Numbers(b.Start))
}

// Numbers formats lengths, or starts, for errors.
func Numbers(ns []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(ns), " ", ","), "[]")
}

// End returns where b ends along an axis.
func (b Box) End(axis int) int { return b.Start[axis] + b.Shape[axis] }

// Check returns an error unless b is a box of a tensor of so many axes.
func (b Box) Check(axes int) error {
	if len(b.Start) != len(b.Shape) || len(b.Shape) != axes {
		return fmt.Errorf("a part of %d axes begins at %d numbers, in a tensor of %d axes", len(b.Shape), len(b.Start), axes)
	}
	for i, n := range b.Shape {
		if n < 0 || b.Start[i] < 0 || b.Start[i] > math.MaxInt-n {
			return fmt.Errorf("a part %v", b)
		}
	}
	return nil
}

// Within reports whether b is in a tensor of a shape.
func (b Box) Within(shape []int) bool {
	for i, n := range shape {
		if b.Start[i] < 0 || b.Shape[i] < 0 || b.Shape[i] > n-b.Start[i] {
			return false
		}
	}
	return true
}

// Size returns how many elements b has.
func (b Box) Size() int {
	n := 1
	for _, d := range b.Shape {
		n *= d
	}
	return n
}

// And returns what b and c have in common, which may be empty.
func (b Box) And(c Box) Box {
	x := Box{make([]int, len(b.Shape)), make([]int, len(b.Shape))}
	for i := range b.Shape {
		x.Start[i] = max(b.Start[i], c.Start[i])
		x.Shape[i] = max(0, min(b.End(i), c.End(i))-x.Start[i])
	}
	return x
}

// split returns the first n elements of b along an axis, and the others.
func (b Box) split(axis, n int) (Box, Box) {
	first, second := Box{b.Start, slices.Clone(b.Shape)}, Box{slices.Clone(b.Start), slices.Clone(b.Shape)}
	first.Shape[axis] = n
	second.Start[axis] += n
	second.Shape[axis] -= n
	return first, second
}

// ToBytes returns the box of the bytes of b, whose elements have so many bits. It has one axis more, that of
// the bytes of an element, or of the least number of elements that are whole bytes: these count as one along
// the last axis.
func (b Box) ToBytes(bits int) (Box, error) {
	x := Box{slices.Clone(b.Start), slices.Clone(b.Shape)}
	bytes := bits / 8
	if bits%8 != 0 {
		n := 8 / (bits & -bits)
		bytes = bits * n / 8
		last := len(x.Shape) - 1
		if last < 0 || x.Start[last]%n != 0 || x.Shape[last]%n != 0 {
			return x, fmt.Errorf("a part %v of elements of %d bits, whose rows are no whole bytes", b, bits)
		}
		x.Start[last] /= n
		x.Shape[last] /= n
	}
	return Box{append(x.Start, 0), append(x.Shape, bytes)}, nil
}

// Array is a Box whose elements are in memory, or in a file: Strides[i] are from one to the next along axis i.
type Array struct {
	Box
	Strides []int
}

// RowMajor returns b with its last axis varying fastest.
func RowMajor(b Box) Array {
	a, n := Array{b, make([]int, len(b.Shape))}, 1
	for i := len(b.Shape) - 1; i >= 0; i-- {
		a.Strides[i] = n
		n *= b.Shape[i]
	}
	return a
}

// ToBytes returns the array of the bytes of a, whose elements have so many bits. Strides may be nil: it is
// row-major.
func (a Array) ToBytes(bits int) (Array, error) {
	b, err := a.Box.ToBytes(bits)
	if err != nil || a.Strides == nil {
		return RowMajor(b), err
	}
	width := b.Shape[len(b.Shape)-1]
	bytes := Array{Box: b, Strides: make([]int, 0, len(b.Shape))}
	for _, s := range a.Strides {
		bytes.Strides = append(bytes.Strides, s*width)
	}
	bytes.Strides = append(bytes.Strides, 1)
	return bytes, nil
}

// at returns how far the first element of x is from the first of a.
func (a Array) at(x Box) (n int) {
	for i, s := range a.Strides {
		n += (x.Start[i] - a.Start[i]) * s
	}
	return n
}

// span returns how many elements of a are from the first of x to its last, both included.
func (a Array) span(x Box) int {
	n := 1
	for i, s := range a.Strides {
		n += (x.Shape[i] - 1) * s
	}
	return n
}

// halves splits x, which has several elements, along the axis on which its elements are farthest apart in a.
func (a Array) halves(x Box) (Box, Box) {
	axis, most := 0, -1
	for i, s := range a.Strides {
		if n := (x.Shape[i] - 1) * s; n > most {
			axis, most = i, n
		}
	}
	return x.split(axis, x.Shape[axis]/2)
}

// InRuns yields the blocks of a tensor that are contiguous in it and have at most so many elements, in
// row-major order.
func InRuns(shape []int, most int, yield func(Box) error) error {
	b := Whole(shape)
	if b.Size() == 0 {
		return nil
	}
	var visit func(b Box) error
	visit = func(b Box) error {
		i := slices.IndexFunc(b.Shape, func(n int) bool { return n > 1 })
		if i < 0 || b.Size() <= most {
			return yield(b)
		}
		row := b.Size() / b.Shape[i]
		for n := max(1, most/row); b.Shape[i] > n; {
			var first Box
			first, b = b.split(i, n)
			if err := visit(first); err != nil {
				return err
			}
		}
		return visit(b)
	}
	return visit(b)
}
