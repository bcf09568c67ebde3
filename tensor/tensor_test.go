package tensor_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

func TestDTypeNames(t *testing.T) {
	seen := map[string]bool{}
	for dt := tensor.Bool; dt.Valid(); dt++ {
		back, err := tensor.ParseDType(dt.String())
		require.NoError(t, err)
		assert.Equal(t, dt, back)
		assert.Positive(t, dt.Bits())
		seen[dt.String()] = true
	}
	assert.Len(t, seen, 22)
	assert.Equal(t, "invalid", tensor.Invalid.String())
	assert.Equal(t, "DType(200)", tensor.DType(200).String())
	assert.Zero(t, tensor.DType(200).Bits())
	assert.False(t, tensor.DType(200).Valid())
	for _, name := range []string{"", "invalid", "bf16", "F31"} {
		_, err := tensor.ParseDType(name)
		assert.EqualError(t, err, "tensor: no dtype is named "+quoted(name))
	}
}

func quoted(s string) string { return `"` + s + `"` }

func TestSize(t *testing.T) {
	for _, tc := range []struct {
		dt    tensor.DType
		shape []int
		want  int
		err   string
	}{
		{dt: tensor.F32, want: 4},
		{dt: tensor.F32, shape: []int{2, 3}, want: 24},
		{dt: tensor.F32, shape: []int{2, 0, math.MaxInt, math.MaxInt}},
		{dt: tensor.F4, shape: []int{3, 2}, want: 3},
		{dt: tensor.F6E3M2, shape: []int{4}, want: 3},
		{dt: tensor.F6E3M2, shape: []int{0}},
		{dt: tensor.F4, err: "4 bits, which is no whole number of bytes"},
		{dt: tensor.F6E2M3, shape: []int{2}, err: "12 bits, which is no whole number of bytes"},
		{dt: tensor.F32, shape: []int{1, -2}, err: "axis 1 of shape [1 -2] is negative"},
		{dt: tensor.F32, shape: []int{0, -2}, err: "axis 1 of shape [0 -2] is negative"},
		{dt: tensor.U8, shape: []int{math.MaxInt, 2}, err: "more elements than can be counted"},
		{dt: tensor.U8, shape: []int{math.MaxInt / 2, 5}, err: "more elements than can be counted"},
		{dt: tensor.F64, shape: []int{math.MaxInt}, err: "larger than memory can be"},
		{dt: tensor.Invalid, shape: []int{1}, err: "invalid is not a dtype"},
		{dt: 99, shape: []int{1}, err: "DType(99) is not a dtype"},
	} {
		n, err := tensor.Size(tc.dt, tc.shape...)
		if tc.err != "" {
			assert.ErrorContains(t, err, tc.err)
			assert.Panics(t, func() { tensor.New(tc.dt, tc.shape...) })
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, tc.want, n, "%v %v", tc.dt, tc.shape)
		x := tensor.New(tc.dt, tc.shape...)
		assert.Equal(t, make([]byte, n), x.Data)
		assert.NoError(t, x.Check())
	}
}

type shelf struct {
	short int
	err   error
	asked []int
}

func (s *shelf) Alloc(n int) ([]byte, error) {
	s.asked = append(s.asked, n)
	return make([]byte, n-s.short, n+8), s.err
}

func TestNewIn(t *testing.T) {
	var a shelf
	x, err := tensor.NewIn(&a, tensor.BF16, 3, 2)
	require.NoError(t, err)
	assert.Equal(t, []int{12}, a.asked)
	assert.Equal(t, 12, cap(x.Data))

	_, err = tensor.NewIn(&shelf{short: 1}, tensor.BF16, 3)
	require.EqualError(t, err, "tensor: BF16 of shape [3] has 6 bytes, not 5")
	full := errors.New("shm: full")
	_, err = tensor.NewIn(&shelf{err: full}, tensor.BF16, 3)
	require.ErrorIs(t, err, full)
	require.EqualError(t, err, "tensor: BF16 of shape [3]: shm: full")
	_, err = tensor.NewIn(&a, tensor.BF16, -1)
	require.Error(t, err)
	assert.Len(t, a.asked, 1)

	onHeap, err := tensor.NewIn(nil, tensor.BF16, 3)
	require.NoError(t, err)
	assert.True(t, tensor.Equal(tensor.New(tensor.BF16, 3), onHeap))
}

func TestWrap(t *testing.T) {
	data := make([]byte, 12)
	x, err := tensor.Wrap(data, tensor.F32, 3)
	require.NoError(t, err)
	assert.Same(t, &data[0], &x.Data[0])
	_, err = tensor.Wrap(data, tensor.F32, 4)
	require.EqualError(t, err, "tensor: F32 of shape [4] has 16 bytes, not 12")
	_, err = tensor.Wrap(data, tensor.F32, -1)
	require.Error(t, err)
}

func TestReshape(t *testing.T) {
	x := tensor.From([]int16{1, 2, 3, 4, 5, 6}, 2, 3)
	y, err := x.Reshape(3, 1, 2)
	require.NoError(t, err)
	assert.Equal(t, "I16[3,1,2]", y.String())
	assert.Same(t, &x.Data[0], &y.Data[0])
	assert.Equal(t, "I16[2,3]", x.String())

	_, err = x.Reshape(3, 3)
	require.EqualError(t, err, "tensor: I16[2,3] has 6 elements, shape [3 3] has 9")
	_, err = x.Reshape(-1, 6)
	require.ErrorContains(t, err, "negative")
	_, err = (*tensor.Tensor)(nil).Reshape(1)
	require.Error(t, err)
	scalar, err := tensor.From([]int16{1}).Reshape()
	require.NoError(t, err)
	assert.Equal(t, "I16[]", scalar.String())
}

func TestEqual(t *testing.T) {
	x := tensor.From([]float32{1, float32(math.NaN())})
	assert.True(t, tensor.Equal(x, x.Clone()))
	assert.True(t, tensor.Equal(nil, nil))
	for _, y := range []*tensor.Tensor{
		nil,
		tensor.From([]float32{1, 2}),
		{DType: tensor.I32, Shape: x.Shape, Data: x.Data},
		{DType: tensor.F32, Shape: []int{2, 1}, Data: x.Data},
	} {
		assert.False(t, tensor.Equal(x, y), y)
		assert.False(t, tensor.Equal(y, x), y)
	}
	assert.False(t, tensor.Equal(tensor.From([]float32{0}), tensor.From([]float32{float32(math.Copysign(0, -1))})))
}

func TestCloneSharesNothing(t *testing.T) {
	x := tensor.From([]int64{1, 2}, 2, 1)
	y := x.Clone()
	y.Data[0], y.Shape[1] = 9, 9
	assert.Equal(t, []int{2, 1}, x.Shape)
	assert.Equal(t, byte(1), x.Data[0])
}

func TestString(t *testing.T) {
	assert.Equal(t, "BF16[4096,4096]", tensor.New(tensor.BF16, 4096, 4096).String())
	assert.Equal(t, "none", (*tensor.Tensor)(nil).String())
}
