package tensor_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

// bit is one bit of element i of x, the slow way.
func bit(x *tensor.Tensor, i, b int) byte {
	at := i*x.DType.Bits() + b
	return x.Data[at/8] >> (at % 8) & 1
}

// naive copies element by element and bit by bit: n elements from at on of src's axis to dst.
func naive(dst *tensor.Tensor, axis int, src *tensor.Tensor, at, n int) {
	for i := range src.Len() {
		index := make([]int, len(src.Shape))
		for rest, a := i, len(index)-1; a >= 0; a-- {
			index[a] = rest % src.Shape[a]
			rest /= src.Shape[a]
		}
		if index[axis] < at || index[axis] >= at+n {
			continue
		}
		index[axis] -= at
		j := 0
		for a, d := range dst.Shape {
			j = j*d + index[a]
		}
		for b := range src.DType.Bits() {
			p := j*dst.DType.Bits() + b
			dst.Data[p/8] = dst.Data[p/8]&^(1<<(p%8)) | bit(src, i, b)<<(p%8)
		}
	}
}

func random(rng *rand.Rand, dt tensor.DType, shape []int) *tensor.Tensor {
	x := tensor.New(dt, shape...)
	for i := range x.Data {
		x.Data[i] = byte(rng.Uint32())
	}
	return x
}

// whole reports whether elements from and to along axis of x begin on whole bytes, in every row.
func whole(x *tensor.Tensor, axis, from, to int) bool {
	if x.Len() == 0 {
		return true
	}
	outer, step := 1, x.DType.Bits()
	for _, d := range x.Shape[:axis] {
		outer *= d
	}
	for _, d := range x.Shape[axis+1:] {
		step *= d
	}
	for row := range outer {
		start := row * step * x.Shape[axis]
		if (start+step*from)%8 != 0 || (start+step*to)%8 != 0 {
			return false
		}
	}
	return true
}

// checkSlice has Slice agree with naive on one range.
func checkSlice(t *testing.T, x *tensor.Tensor, axis, from, to int) {
	t.Helper()
	part, err := x.Slice(axis, from, to)
	if !whole(x, axis, from, to) {
		require.ErrorContains(t, err, "whole bytes", "%v axis %d [%d:%d]", x, axis, from, to)
		return
	}
	require.NoError(t, err, "%v axis %d [%d:%d]", x, axis, from, to)
	require.NoError(t, part.Check())
	shape := slices.Clone(x.Shape)
	shape[axis] = to - from
	want := tensor.New(x.DType, shape...)
	naive(want, axis, x, from, to-from)
	require.True(t, tensor.Equal(want, part), "%v axis %d [%d:%d]: %x, not %x", x, axis, from, to, part.Data, want.Data)
	require.Equal(t, len(part.Data), cap(part.Data))
}

// TestSlice takes every range of every axis of random tensors.
func TestSlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 400 {
		dt := tensor.DType(1 + rng.IntN(int(tensor.U64)))
		shape := make([]int, 1+rng.IntN(4))
		for i := range shape {
			shape[i] = rng.IntN(5)
		}
		if _, err := tensor.Size(dt, shape...); err != nil {
			shape[rng.IntN(len(shape))] *= 4 // packed elements, in no whole number of bytes
		}
		x := random(rng, dt, shape)
		for axis, d := range shape {
			for from := range d + 1 {
				for to := from; to <= d; to++ {
					checkSlice(t, x, axis, from, to)
				}
			}
		}
	}
}

func TestSliceErrors(t *testing.T) {
	x := tensor.New(tensor.F32, 2, 3)
	for want, r := range map[string][3]int{
		"tensor: F32[2,3] has no axis 2":                           {2, 0, 1},
		"tensor: F32[2,3] has no axis -1":                          {-1, 0, 1},
		"tensor: [-1:1] is out of range along axis 0 of F32[2,3]":  {0, -1, 1},
		"tensor: [2:1] is out of range along axis 0 of F32[2,3]":   {0, 2, 1},
		"tensor: [0:4] is out of range along axis 1 of F32[2,3]":   {1, 0, 4},
		fmt.Sprintf("tensor: [0:%d] is out of range", math.MaxInt): {1, 0, math.MaxInt},
	} {
		_, err := x.Slice(r[0], r[1], r[2])
		assert.ErrorContains(t, err, want)
	}
	_, err := (&tensor.Tensor{DType: tensor.F32, Shape: []int{2}, Data: make([]byte, 4)}).Slice(0, 0, 1)
	require.ErrorContains(t, err, "has 8 bytes, not 4")
	_, err = tensor.New(tensor.F32).Slice(0, 0, 0)
	require.ErrorContains(t, err, "has no axis 0")
}

// TestSliceOfNothing has other axes whose product overflows.
func TestSliceOfNothing(t *testing.T) {
	x := tensor.New(tensor.F64, math.MaxInt, 0, 3, math.MaxInt)
	for axis, d := range x.Shape {
		part, err := x.Slice(axis, d/3, d)
		require.NoError(t, err)
		assert.Equal(t, d-d/3, part.Shape[axis])
		assert.Empty(t, part.Data)
	}
}

func TestSliceShares(t *testing.T) {
	x := tensor.From([]int32{1, 2, 3, 4, 5, 6}, 1, 3, 2)
	for axis, want := range []byte{1, 3, 0} {
		if axis == 2 {
			continue // of more than one row: a copy
		}
		part, err := x.Slice(axis, x.Shape[axis]/3, x.Shape[axis])
		require.NoError(t, err)
		assert.Equal(t, want, part.Data[0])
		part.Data[0]++
		assert.Equal(t, want+1, x.Data[8*(x.Shape[axis]/3)])
		part.Data[0]--
	}
	column, err := x.Slice(2, 1, 2)
	require.NoError(t, err)
	column.Data[0] = 9
	assert.Equal(t, byte(2), x.Data[4])
}

// FuzzParts has no shape or range do harm, and those that are right agree with naive.
func FuzzParts(f *testing.F) {
	f.Add(byte(tensor.F32), byte(1), 1, 2, []byte{2, 0, 3, 0})
	f.Add(byte(tensor.F4), byte(0), 0, 1, []byte{2, 0, 4, 0, 1, 0})
	f.Add(byte(tensor.F6E2M3), byte(1), 4, 8, []byte{3, 0, 8, 0})
	f.Add(byte(tensor.U64), byte(0), -1, 7, []byte{0, 0, 255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, dtype, axis byte, from, to int, axes []byte) {
		var shape []int
		for ; len(axes) > 1 && len(shape) < 6; axes = axes[2:] {
			d := int(int16(binary.LittleEndian.Uint16(axes)))
			if d > 1000 {
				d = math.MaxInt - d // which overflows
			}
			shape = append(shape, d)
		}
		n, err := tensor.Size(tensor.DType(dtype), shape...)
		if err != nil || n > 1<<12 {
			return
		}
		x := random(rand.New(rand.NewPCG(1, uint64(n))), tensor.DType(dtype), shape)
		part, err := x.Slice(int(axis), from, to)
		if err == nil && part.Len() == 0 {
			require.NoError(t, part.Check())
		} else if int(axis) < len(shape) && from >= 0 && from <= to && to <= shape[axis] {
			checkSlice(t, x, int(axis), from, to)
		} else {
			require.Error(t, err)
		}
	})
}
