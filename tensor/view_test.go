package tensor_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

// roundTrip has From and View give the same memory, of the right dtype.
func roundTrip[T tensor.Element](t *testing.T, want tensor.DType, vals ...T) {
	t.Helper()
	assert.Equal(t, want, tensor.DTypeOf[T]())
	x := tensor.From(vals)
	require.NoError(t, x.Check())
	assert.Equal(t, want, x.DType)
	assert.Equal(t, []int{len(vals)}, x.Shape)
	assert.Equal(t, int(unsafe.Sizeof(vals[0]))*8, want.Bits())

	v, err := tensor.View[T](x)
	require.NoError(t, err)
	assert.Equal(t, vals, v)
	v[0], v[1] = v[1], v[0]
	assert.Equal(t, vals, v)
	assert.Same(t, &vals[0], &v[0])
	assert.Equal(t, len(v), cap(v))

	fresh, err := tensor.View[T](tensor.New(want, 1, 3))
	require.NoError(t, err)
	assert.Equal(t, make([]T, 3), fresh)
}

func TestViewOfEachElement(t *testing.T) {
	roundTrip(t, tensor.Bool, true, false)
	roundTrip[uint8](t, tensor.U8, 1, 2)
	roundTrip[int8](t, tensor.I8, -1, 2)
	roundTrip[int16](t, tensor.I16, -1, 2)
	roundTrip[uint16](t, tensor.U16, 1, 2)
	roundTrip[tensor.Float16](t, tensor.F16, 1, 2)
	roundTrip[tensor.BFloat16](t, tensor.BF16, 1, 2)
	roundTrip[int32](t, tensor.I32, -1, 2)
	roundTrip[uint32](t, tensor.U32, 1, 2)
	roundTrip[float32](t, tensor.F32, 1, 2)
	roundTrip[complex64](t, tensor.C64, 1i, 2)
	roundTrip[float64](t, tensor.F64, 1, 2)
	roundTrip[int64](t, tensor.I64, -1, 2)
	roundTrip[uint64](t, tensor.U64, 1, 2)
}

func TestFromIsLittleEndian(t *testing.T) {
	x := tensor.From([]uint32{0x01020304, 5}, 2, 1)
	assert.Equal(t, []byte{4, 3, 2, 1, 5, 0, 0, 0}, x.Data)
	assert.Equal(t, []int{2, 1}, x.Shape)
}

func TestFromShape(t *testing.T) {
	shape := []int{3, 2}
	x := tensor.From(make([]float32, 6), shape...)
	shape[0] = 6
	assert.Equal(t, []int{3, 2}, x.Shape)
	assert.Equal(t, []int{0}, tensor.From[float64](nil).Shape)
	assert.Equal(t, []int{0, 5}, tensor.From([]int8{}, 0, 5).Shape)

	assert.PanicsWithError(t, "tensor: F32 of shape [4] has 4 elements, not 3", func() { tensor.From(make([]float32, 3), 4) })
	assert.PanicsWithError(t, "tensor: axis 0 of shape [-1] is negative", func() { tensor.From(make([]float32, 3), -1) })
}

// TestCapacity has an append to what aliases a tensor leave its neighbour alone.
func TestCapacity(t *testing.T) {
	vals := []int32{1, 2, 3, 4}
	x := tensor.From(vals[:2])
	_ = append(x.Data, 9)
	v, err := tensor.View[int32](x)
	require.NoError(t, err)
	_ = append(v, 9)
	wrapped, err := tensor.Wrap(tensor.From(vals).Data[:4], tensor.I32, 1)
	require.NoError(t, err)
	_ = append(wrapped.Data, 9)
	assert.Equal(t, []int32{1, 2, 3, 4}, vals)
}

func TestViewErrors(t *testing.T) {
	words := tensor.From(make([]uint64, 2)).Data
	for name, tc := range map[string]struct {
		view func() error
		want string
	}{
		"dtype": {
			func() error { _, err := tensor.View[float32](tensor.New(tensor.BF16, 3)); return err },
			"tensor: BF16[3] cannot be viewed as F32",
		},
		"dtype of the same size": {
			func() error { _, err := tensor.View[uint16](tensor.New(tensor.F16, 3)); return err },
			"tensor: F16[3] cannot be viewed as U16",
		},
		"unaligned": {
			func() error {
				x, err := tensor.Wrap(words[1:9], tensor.F32, 2)
				require.NoError(t, err)
				_, err = tensor.View[float32](x)
				return err
			},
			"tensor: F32[2] is not aligned to 4 bytes: view a Clone",
		},
		"bool": {
			func() error {
				x, err := tensor.Wrap([]byte{0, 1, 0xff}, tensor.Bool, 3)
				require.NoError(t, err)
				_, err = tensor.View[bool](x)
				return err
			},
			"tensor: element 2 of BOOL is the byte 0xff, neither 0 nor 1",
		},
		"size": {
			func() error {
				_, err := tensor.View[int8](&tensor.Tensor{DType: tensor.I8, Shape: []int{4}, Data: make([]byte, 3)})
				return err
			},
			"tensor: I8 of shape [4] has 4 bytes, not 3",
		},
		"nil": {
			func() error { _, err := tensor.View[int8](nil); return err },
			"tensor: nil",
		},
	} {
		t.Run(name, func(t *testing.T) { assert.EqualError(t, tc.view(), tc.want) })
	}
	x, err := tensor.Wrap(words[1:9], tensor.F32, 2)
	require.NoError(t, err)
	v, err := tensor.View[float32](x.Clone())
	require.NoError(t, err)
	assert.Equal(t, []float32{0, 0}, v)
}

func TestViewOfNothing(t *testing.T) {
	v, err := tensor.View[float64](tensor.New(tensor.F64, 3, 0))
	require.NoError(t, err)
	assert.Empty(t, v)
	s, err := tensor.View[float64](tensor.New(tensor.F64))
	require.NoError(t, err)
	assert.Equal(t, []float64{0}, s)
}
