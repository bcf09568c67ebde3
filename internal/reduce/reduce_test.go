package reduce_test

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/tensor"
)

var ops = map[string]reduce.Op{"sum": reduce.Sum, "product": reduce.Product, "min": reduce.Min, "max": reduce.Max}

// want is what one element of several sources becomes, one step at a time.
func want[T tensor.Number](op reduce.Op, div int, vs []T) T {
	v := vs[0]
	for _, w := range vs[1:] {
		switch op {
		case reduce.Sum:
			v += w
		case reduce.Product:
			v *= w
		case reduce.Min:
			v = min(v, w)
		case reduce.Max:
			v = max(v, w)
		}
	}
	if div == 1 {
		return v
	}
	switch v := any(v).(type) {
	case float32:
		return any(v / float32(div)).(T)
	case float64:
		return any(v / float64(div)).(T)
	case uint64:
		return any(v / uint64(div)).(T)
	}
	quotient := new(big.Int).Quo(big.NewInt(int64(v)), big.NewInt(int64(div)))
	return T(quotient.Int64())
}

// want16 is want for 16-bit floats: of float32s, rounded at the end.
func want16[T tensor.Number](op reduce.Op, div int, vs []T, wide func(T) float32, narrow func(float32) T) T {
	var all []float32
	for _, v := range vs {
		all = append(all, wide(v))
	}
	return narrow(want(op, div, all))
}

// expected is what Into is to make of srcs.
func expected[T tensor.Number](op reduce.Op, div int, srcs [][]T) []T {
	out := make([]T, len(srcs[0]))
	for i := range out {
		var vs []T
		for _, s := range srcs {
			vs = append(vs, s[i])
		}
		switch any(out).(type) {
		case []tensor.Float16:
			out[i] = want16(op, div, vs, func(v T) float32 { return tensor.Float16(v).Float32() }, func(f float32) T { return T(tensor.Float16From(f)) })
		case []tensor.BFloat16:
			out[i] = want16(op, div, vs, func(v T) float32 { return tensor.BFloat16(v).Float32() }, func(f float32) T { return T(tensor.BFloat16From(f)) })
		default:
			out[i] = want(op, div, vs)
		}
	}
	return out
}

// drawn are elements by chance: of integers all bits, of floats numbers of all sizes, and sometimes what is none.
func drawn[T tensor.Number](r *rand.Rand, n int) []T {
	out := make([]T, n)
	for i := range out {
		f := r.NormFloat64() * math.Exp2(float64(r.IntN(20)-10))
		if r.IntN(50) == 0 {
			f = []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1)}[r.IntN(5)]
		}
		switch out := any(out).(type) {
		case []float32:
			out[i] = float32(f)
		case []float64:
			out[i] = f
		case []tensor.Float16:
			out[i] = tensor.Float16From(float32(f))
		case []tensor.BFloat16:
			out[i] = tensor.BFloat16From(float32(f))
		default:
			return integers[T](r, n)
		}
	}
	return out
}

func integers[T tensor.Number](r *rand.Rand, n int) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = T(r.Uint64())
	}
	return out
}

// same compares bits, except that all NaNs are one.
func same[T tensor.Number](t *testing.T, want, got []T) {
	t.Helper()
	if bytes.Equal(tensor.From(want).Data, tensor.From(got).Data) {
		return
	}
	text := func(v T) string {
		switch v := any(v).(type) {
		case tensor.Float16:
			return fmt.Sprint(v.Float32())
		case tensor.BFloat16:
			return fmt.Sprint(v.Float32())
		case float32:
			return fmt.Sprint(math.Float32bits(v), v != v)
		case float64:
			return fmt.Sprint(math.Float64bits(v), v != v)
		}
		return fmt.Sprint(v)
	}
	require.Len(t, got, len(want))
	for i := range want {
		if w, g := text(want[i]), text(got[i]); w != g && (want[i] == want[i] || got[i] == got[i]) {
			require.Equal(t, w, g, "element %d", i)
		}
	}
}

// bytesOf are slices as bytes.
func bytesOf[T tensor.Number](all ...[]T) (out [][]byte) {
	for _, x := range all {
		out = append(out, tensor.From(x).Data)
	}
	return out
}

// into is Into for slices of T.
func into[T tensor.Number](s *reduce.Scratch, op reduce.Op, div int, dst []T, srcs [][]T) {
	reduce.Into(s, tensor.DTypeOf[T](), op, div, tensor.From(dst).Data, bytesOf(srcs...))
}

func check[T tensor.Number](t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := new(reduce.Scratch)
	for name, op := range ops {
		for _, n := range []int{0, 1, 1030} {
			for _, p := range []int{1, 2, 3, 4, 5, 8, 9, 130} {
				for _, div := range []int{1, p} {
					srcs := make([][]T, p)
					for k := range srcs {
						srcs[k] = drawn[T](r, n)
					}
					expect := expected(op, div, srcs)
					what := fmt.Sprint(name, " of ", p, " × ", n, " ÷ ", div)
					apart := make([]T, n)
					into(s, op, div, apart, srcs)
					same(t, expect, apart)
					for _, k := range []int{0, p - 1} { // into the first or the last of them
						again := slices.Clone(srcs)
						again[k] = slices.Clone(srcs[k])
						into(s, op, div, again[k], again)
						same(t, expect, again[k])
					}
					assert.False(t, t.Failed(), what)
				}
			}
		}
	}
}

func TestInto(t *testing.T) {
	t.Run("int8", check[int8])
	t.Run("int16", check[int16])
	t.Run("int32", check[int32])
	t.Run("int64", check[int64])
	t.Run("uint8", check[uint8])
	t.Run("uint16", check[uint16])
	t.Run("uint32", check[uint32])
	t.Run("uint64", check[uint64])
	t.Run("float32", check[float32])
	t.Run("float64", check[float64])
	t.Run("float16", check[tensor.Float16])
	t.Run("bfloat16", check[tensor.BFloat16])
}

func TestDivisionOfNarrowIntegers(t *testing.T) {
	n := [][]int8{{-128, 127, 5}}
	into(new(reduce.Scratch), reduce.Sum, 128, n[0], n)
	assert.Equal(t, []int8{-1, 0, 0}, n[0])
}

func TestCan(t *testing.T) {
	assert.True(t, reduce.Can(tensor.BF16))
	assert.False(t, reduce.Can(tensor.Bool))
	assert.PanicsWithValue(t, "reduce: "+tensor.Bool.String(), func() {
		reduce.Into(new(reduce.Scratch), tensor.Bool, reduce.Sum, 1, nil, make([][]byte, 1))
	})
}

func TestNothingIsAllocated(t *testing.T) {
	s := new(reduce.Scratch)
	for _, dt := range []tensor.DType{tensor.F32, tensor.F16} {
		srcs := [][]byte{make([]byte, 20000), make([]byte, 20000), make([]byte, 20000), make([]byte, 20000), make([]byte, 20000)}
		assert.Zero(t, testing.AllocsPerRun(10, func() { reduce.Into(s, dt, reduce.Sum, 4, srcs[0], srcs) }))
	}
}
