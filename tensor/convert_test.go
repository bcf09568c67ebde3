package tensor_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

func TestFloat32sOfEachElement(t *testing.T) {
	for _, tc := range []struct {
		t    *tensor.Tensor
		want []float32
	}{
		{tensor.From([]bool{true, false, true}), []float32{1, 0, 1}},
		{tensor.From([]int8{-128, 0, 127}), []float32{-128, 0, 127}},
		{tensor.From([]uint8{0, 255}), []float32{0, 255}},
		{tensor.From([]int16{-32768, 32767}), []float32{-32768, 32767}},
		{tensor.From([]uint16{65535}), []float32{65535}},
		{tensor.From([]int32{math.MinInt32, -1, 1<<24 + 1, math.MaxInt32}), []float32{-1 << 31, -1, 1 << 24, 1 << 31}},
		{tensor.From([]uint32{1<<24 + 3, math.MaxUint32}), []float32{1<<24 + 4, 1 << 32}},
		{tensor.From([]int64{math.MinInt64, -1, 1<<40 + 1<<16 + 1}), []float32{-1 << 63, -1, 1<<40 + 1<<17}},
		{tensor.From([]uint64{math.MaxUint64, 1<<63 + 1}), []float32{1 << 64, 1 << 63}},
		{tensor.From([]float32{1.5, float32(math.Inf(-1))}), []float32{1.5, float32(math.Inf(-1))}},
		{tensor.From([]float64{1e300, -1e-300, 0.1}), []float32{float32(math.Inf(1)), float32(math.Copysign(0, -1)), 0.1}},
		{tensor.From([]tensor.Float16{0x3c00, 0xc000, 0x7c00, 1}), []float32{1, -2, float32(math.Inf(1)), 0x1p-24}},
		{tensor.From([]tensor.BFloat16{0x3f80, 1}), []float32{1, 0x1p-133}},
		{tensor.From([]tensor.Float8E8M0{0, 127, 254}), []float32{0x1p-127, 1, 0x1p127}},
	} {
		got, err := tc.t.AppendFloat32s([]float32{42})
		require.NoError(t, err)
		assert.Equal(t, append([]float32{42}, tc.want...), got, tc.t)
	}
}

// TestPackedLayout has the first element in the lowest bits.
func TestPackedLayout(t *testing.T) {
	four, err := tensor.Wrap([]byte{0x21, 0xf7}, tensor.F4, 4)
	require.NoError(t, err)
	assert.Equal(t, []float32{0.5, 1, 6, -6}, floats(t, four))

	const word = 1 | 2<<6 | 0x1f<<12 | 0x3f<<18
	six, err := tensor.Wrap([]byte{byte(word & 0xff), byte(word >> 8 & 0xff), byte(word >> 16)}, tensor.F6E2M3, 4)
	require.NoError(t, err)
	assert.Equal(t, []float32{0.125, 0.25, 7.5, -7.5}, floats(t, six))

	back, err := tensor.FromFloat32s(tensor.F6E2M3, []float32{0.125, 0.25, 1000, float32(math.Inf(-1))}, 2, 2)
	require.NoError(t, err)
	assert.Equal(t, six.Data, back.Data)
}

// TestFloat32sAt reads every range of a tensor, also of packed elements, whose ranges begin within a byte.
func TestFloat32sAt(t *testing.T) {
	for _, dt := range []tensor.DType{tensor.F4, tensor.F6E3M2, tensor.F8E4M3FNUZ, tensor.BF16, tensor.I64} {
		vals := []float32{1, 2, 3, -4, 0, 6, -2, 1}
		x, err := tensor.FromFloat32s(dt, vals, 2, 4)
		require.NoError(t, err)
		for from := range len(vals) + 1 {
			for n := range len(vals) + 2 {
				dst := make([]float32, n)
				got, err := x.Float32sAt(dst, from)
				require.NoError(t, err)
				require.Equal(t, min(n, len(vals)-from), got)
				require.Equal(t, vals[from:from+got], dst[:got], "%v[%d:]", dt, from)
			}
		}
		for _, from := range []int{-1, 9, math.MaxInt} {
			_, err := x.Float32sAt(make([]float32, 1), from)
			assert.ErrorContains(t, err, "has no element")
		}
	}
}

func TestFloat32sErrors(t *testing.T) {
	keep := []float32{7}
	for want, x := range map[string]*tensor.Tensor{
		"tensor: C64[1] has complex numbers":                         tensor.From([]complex64{1}),
		"tensor: element 2 of BOOL is the byte 0x2, neither 0 nor 1": {DType: tensor.Bool, Shape: []int{3}, Data: []byte{0, 1, 2}},
		"tensor: F32 of shape [2] has 8 bytes, not 7":                {DType: tensor.F32, Shape: []int{2}, Data: make([]byte, 7)},
		"tensor: nil": nil,
	} {
		got, err := x.AppendFloat32s(keep)
		assert.ErrorContains(t, err, want)
		assert.Equal(t, keep, got)
	}
	late := &tensor.Tensor{DType: tensor.Bool, Shape: []int{3}, Data: []byte{0, 1, 2}}
	_, err := late.Float32sAt(make([]float32, 1), 2)
	assert.ErrorContains(t, err, "element 2 of BOOL")
}

func TestFromFloat32s(t *testing.T) {
	for dt := tensor.Bool; dt.Valid(); dt++ {
		if dt == tensor.C64 {
			continue
		}
		vals := []float32{1, 1, 0, 1, 1, 0, 0, 1}
		if dt == tensor.F8E8M0 {
			vals = []float32{1, 2, 4, 0.5, 1, 1, 1, 1}
		}
		x, err := tensor.FromFloat32s(dt, vals, 2, 1, 4)
		require.NoError(t, err, dt)
		require.NoError(t, x.Check())
		assert.Equal(t, dt, x.DType)
		assert.Equal(t, []int{2, 1, 4}, x.Shape)
		assert.Equal(t, vals, floats(t, x), dt)
	}
}

func TestFromFloat32sRange(t *testing.T) {
	nan := float32(math.NaN())
	for _, tc := range []struct {
		dt  tensor.DType
		ok  []float32
		bad []float32
	}{
		{tensor.Bool, []float32{0, 1}, []float32{2, 0.5, -1, nan}},
		{tensor.U8, []float32{0, 255}, []float32{-1, 256, 0.5, nan}},
		{tensor.I8, []float32{-128, 127}, []float32{-129, 128, -0.5}},
		{tensor.U16, []float32{65535}, []float32{65536}},
		{tensor.I16, []float32{-32768}, []float32{32768}},
		{tensor.U32, []float32{1<<32 - 256}, []float32{1 << 32, -1}},
		{tensor.I32, []float32{-1 << 31, 1<<31 - 128}, []float32{1 << 31}},
		{tensor.U64, []float32{1<<64 - 1<<40, 1 << 63}, []float32{1 << 64, -1, float32(math.Inf(1))}},
		{tensor.I64, []float32{-1 << 63, 1<<63 - 1<<39}, []float32{1 << 63, float32(math.Inf(-1)), nan}},
	} {
		x, err := tensor.FromFloat32s(tc.dt, tc.ok)
		require.NoError(t, err)
		assert.Equal(t, tc.ok, floats(t, x))
		for _, v := range tc.bad {
			_, err := tensor.FromFloat32s(tc.dt, []float32{0, 0, 0, v})
			assert.ErrorContains(t, err, "tensor: element 3 of "+tc.dt.String()+"[4] is ", "%v as %v", v, tc.dt)
		}
	}
}

func TestFromFloat32sErrors(t *testing.T) {
	four := make([]float32, 4)
	_, err := tensor.FromFloat32s(tensor.C64, four)
	require.ErrorContains(t, err, "complex")
	_, err = tensor.FromFloat32s(tensor.F32, four, 5)
	require.ErrorContains(t, err, "F32[5] has 5 elements, not 4")
	_, err = tensor.FromFloat32s(tensor.F32, four, math.MaxInt/64)
	require.ErrorContains(t, err, "elements, not 4")
	_, err = tensor.FromFloat32s(tensor.F4, four[:1])
	require.ErrorContains(t, err, "no whole number of bytes")
	_, err = tensor.FromFloat32s(tensor.Invalid, four)
	require.ErrorContains(t, err, "invalid is not a dtype")
}
