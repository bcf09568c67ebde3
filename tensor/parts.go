package tensor

import (
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
	for i := range s.rows {
		copy(part.Data[i*s.n:][:s.n], t.Data[i*s.row+s.at:])
	}
	return part, nil
}
