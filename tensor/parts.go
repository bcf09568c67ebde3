package tensor

import (
	"errors"
	"fmt"
	"slices"
)

// span describes a range of elements along an axis: one run of bytes in each row. A row consists of
// the axis and those after it.
type span struct {
	rows, row int // number of rows, and bytes of each
	at, n     int // offset and length of the run in each row, in bytes
}

// span returns the span of the elements from ≤ i < to, and checks t, axis and the range. If the
// tensor has no elements, it has no rows.
func (t *Tensor) span(axis, from, to int) (span, error) {
	if err := t.Check(); err != nil {
		return span{}, err
	}
	if axis < 0 || axis >= len(t.Shape) {
		return span{}, fmt.Errorf("tensor: %v has no axis %d", t, axis)
	}
	if from < 0 || to < from || to > t.Shape[axis] {
		return span{}, fmt.Errorf("tensor: [%d:%d] is out of range along axis %d of %v", from, to, axis, t)
	}
	if t.Len() == 0 {
		return span{}, nil // the other axes may have any length, so their product may overflow
	}
	rows, step := 1, uint64(t.DType.Bits()) // step is the size of one element of the axis in bits
	for _, d := range t.Shape[:axis] {
		rows *= d
	}
	for _, d := range t.Shape[axis+1:] {
		step *= uint64(d)
	}
	first, last, row := step*uint64(from), step*uint64(to), step*uint64(t.Shape[axis])
	if first%8 != 0 || last%8 != 0 || rows > 1 && row%8 != 0 {
		return span{}, fmt.Errorf("tensor: [%d:%d] along axis %d of %v does not begin and end on whole bytes", from, to, axis, t)
	}
	return span{rows: rows, row: int(row / 8), at: int(first / 8), n: int((last - first) / 8)}, nil
}

// Slice returns the elements from ≤ i < to along axis. Along axis 0, or if every axis before it has
// one element, the result shares t's memory. Otherwise it is a copy, which does not keep t alive. A
// range of packed elements must begin and end on whole bytes.
func (t *Tensor) Slice(axis, from, to int) (*Tensor, error) {
	s, err := t.span(axis, from, to)
	if err != nil {
		return nil, err
	}
	part := &Tensor{DType: t.DType, Shape: slices.Clone(t.Shape)}
	part.Shape[axis] = to - from
	if s.rows <= 1 {
		part.Data = t.Data[s.at : s.at+s.n : s.at+s.n]
		return part, nil
	}
	part.Data = heap(s.rows * s.n)
	copyRuns(part.Data, t.Data[s.at:], s.n, s.n, s.row, s.rows)
	return part, nil
}

// CopyInto copies src to the elements at ≤ i < at+src.Shape[axis] along axis of dst. The two must
// have the same dtype, and the same length along the other axes. A range of packed elements must
// begin and end on whole bytes.
func CopyInto(dst *Tensor, axis, at int, src *Tensor) error {
	if err := src.Check(); err != nil {
		return err
	}
	if err := dst.Check(); err != nil {
		return err
	}
	if !fits(dst, axis, src) {
		return fmt.Errorf("tensor: %v is no part of %v along axis %d", src, dst, axis)
	}
	if at < 0 || src.Shape[axis] > dst.Shape[axis]-at {
		return fmt.Errorf("tensor: %v does not fit into %v at %d along axis %d", src, dst, at, axis)
	}
	s, err := dst.span(axis, at, at+src.Shape[axis])
	if err != nil || s.n == 0 {
		return err
	}
	copyRuns(dst.Data[s.at:], src.Data, s.n, s.row, s.n, s.rows)
	return nil
}

// fits reports whether part has the dtype and shape of whole, except for its length along axis.
func fits(whole *Tensor, axis int, part *Tensor) bool {
	return whole.DType == part.DType && axis >= 0 && axis < len(whole.Shape) && len(whole.Shape) == len(part.Shape) &&
		slices.Equal(whole.Shape[:axis], part.Shape[:axis]) && slices.Equal(whole.Shape[axis+1:], part.Shape[axis+1:])
}

// copyRuns copies count runs of n bytes, at distances of dstStep and srcStep.
func copyRuns(dst, src []byte, n, dstStep, srcStep, count int) {
	if n == dstStep && n == srcStep {
		copy(dst[:n*count], src)
		return
	}
	for i := range count {
		copy(dst[i*dstStep:][:n], src[i*srcStep:])
	}
}

// Concat joins ts along axis, in a's memory; a nil Allocator means the heap. All must have the same
// dtype, and the same length along the other axes. It always copies, even a single tensor.
func Concat(a Allocator, axis int, ts ...*Tensor) (*Tensor, error) {
	if len(ts) == 0 {
		return nil, errors.New("tensor: nothing to concatenate")
	}
	whole, err := joined(axis, ts)
	if err != nil {
		return nil, err
	}
	if whole, err = NewIn(a, whole.DType, whole.Shape...); err != nil {
		return nil, err
	}
	at := 0
	for i, t := range ts {
		if err := CopyInto(whole, axis, at, t); err != nil {
			return nil, fmt.Errorf("tensor: concatenate %d of %d: %w", i, len(ts), err)
		}
		at += t.Shape[axis]
	}
	return whole, nil
}

// joined returns the dtype and shape of ts joined along axis, without data.
func joined(axis int, ts []*Tensor) (*Tensor, error) {
	for i, t := range ts {
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("tensor: concatenate %d of %d: %w", i, len(ts), err)
		}
		if !fits(t, axis, ts[0]) {
			return nil, fmt.Errorf("tensor: %v (%d of %d) cannot follow %v along axis %d", t, i, len(ts), ts[0], axis)
		}
	}
	whole := &Tensor{DType: ts[0].DType, Shape: slices.Clone(ts[0].Shape)}
	for _, t := range ts[1:] {
		if t.Shape[axis] > maxInt-whole.Shape[axis] {
			return nil, fmt.Errorf("tensor: %d tensors like %v are too long along axis %d", len(ts), t, axis)
		}
		whole.Shape[axis] += t.Shape[axis]
	}
	return whole, nil
}
