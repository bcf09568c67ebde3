package tensor_test

import (
	"bufio"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

// A golden section has a column for each dtype. testdata/golden.py made them with ml_dtypes, and says how.
type golden struct {
	kind   string // decode: a line is a code; encode: a line begins with a float32
	dtypes []tensor.DType
	lines  [][]uint32
}

func readGolden(t *testing.T) []golden {
	f, err := os.Open("testdata/golden.txt")
	require.NoError(t, err)
	defer f.Close()
	var all []golden
	for scan := bufio.NewScanner(f); scan.Scan(); {
		words := strings.Fields(scan.Text())
		if words[0] == "decode" || words[0] == "encode" {
			g := golden{kind: words[0]}
			for _, name := range words[1:] {
				dt, err := tensor.ParseDType(name)
				require.NoError(t, err)
				g.dtypes = append(g.dtypes, dt)
			}
			all = append(all, g)
			continue
		}
		line := make([]uint32, len(words))
		for i, w := range words {
			n, err := strconv.ParseUint(w, 16, 32)
			require.NoError(t, err)
			line[i] = uint32(n)
		}
		all[len(all)-1].lines = append(all[len(all)-1].lines, line)
	}
	return all
}

// codes is a tensor of all codes of dt, in their order.
func codes(t *testing.T, dt tensor.DType) *tensor.Tensor {
	t.Helper()
	width := dt.Bits()
	data := make([]byte, (1<<width)*width/8)
	for code := range 1 << width {
		for b := range width {
			if bit := code*width + b; code>>b&1 != 0 {
				data[bit/8] |= 1 << (bit % 8)
			}
		}
	}
	all, err := tensor.Wrap(data, dt, 1<<width)
	require.NoError(t, err)
	return all
}

func floats(t *testing.T, x *tensor.Tensor) []float32 {
	t.Helper()
	v, err := x.AppendFloat32s(nil)
	require.NoError(t, err)
	require.Len(t, v, x.Len())
	return v
}

// code is the one that v gets.
func code(t *testing.T, dt tensor.DType, v float32) uint32 {
	t.Helper()
	two := []float32{v, 0, 0, 0} // four elements are whole bytes of every dtype
	x, err := tensor.FromFloat32s(dt, two)
	require.NoError(t, err)
	word := append(x.Data, 0)
	return (uint32(word[0]) | uint32(word[1])<<8) & (1<<dt.Bits() - 1)
}

func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func TestGoldenDecode(t *testing.T) {
	seen := 0
	for _, g := range readGolden(t) {
		if g.kind != "decode" {
			continue
		}
		for col, dt := range g.dtypes {
			seen++
			got := floats(t, codes(t, dt))
			require.Len(t, g.lines, len(got), dt)
			for c, v := range got {
				want := math.Float32frombits(g.lines[c][col])
				assert.True(t, same(want, v), "%v: code %#x is %v, not %v", dt, c, want, v)
			}
		}
	}
	assert.Equal(t, 8, seen)
}

func TestGoldenEncode(t *testing.T) {
	seen := 0
	for _, g := range readGolden(t) {
		if g.kind != "encode" {
			continue
		}
		seen++
		require.Len(t, g.dtypes, 10)
		require.Greater(t, len(g.lines), 2000)
		for _, line := range g.lines {
			v := math.Float32frombits(line[0])
			for col, dt := range g.dtypes {
				checkEncoded(t, dt, v, line[col+1])
			}
		}
	}
	assert.Equal(t, 1, seen)
}

func checkEncoded(t *testing.T, dt tensor.DType, v float32, want uint32) {
	t.Helper()
	if v != v && dt.Bits() < 8 { // ml_dtypes has it as some zero
		_, err := tensor.FromFloat32s(dt, []float32{1, 1, v, 1})
		assert.ErrorContains(t, err, "element 2 of "+dt.String()+"[4] is NaN: the dtype has no NaN")
		return
	}
	assert.Equal(t, want, code(t, dt, v), "%v of %v (%#x)", dt, v, math.Float32bits(v))
}

var smallFloats = []tensor.DType{
	tensor.F4, tensor.F6E2M3, tensor.F6E3M2, tensor.F8E5M2, tensor.F8E4M3, tensor.F8E8M0, tensor.F8E4M3FNUZ, tensor.F8E5M2FNUZ,
	tensor.F16, tensor.BF16,
}

// TestCodesRoundTrip has every code survive, but for the kind of a NaN.
func TestCodesRoundTrip(t *testing.T) {
	for _, dt := range smallFloats {
		all := codes(t, dt)
		vals := floats(t, all)
		back, err := tensor.FromFloat32s(dt, vals)
		require.NoError(t, err)
		again := floats(t, back)
		for c, v := range vals {
			require.True(t, same(v, again[c]), "%v: code %#x is %v and then %v", dt, c, v, again[c])
		}
		if dt.Bits() < 8 {
			assert.Equal(t, all.Data, back.Data, dt)
		}
	}
}

// TestRounding looks between all neighbours of a format: up to the middle it is the lower, beyond it the upper, and in
// the middle the even code.
func TestRounding(t *testing.T) {
	for _, dt := range smallFloats {
		vals := floats(t, codes(t, dt))
		half := len(vals) / 2
		if dt == tensor.F8E8M0 {
			half = len(vals)
		}
		for c := range half - 1 {
			lo, hi := vals[c], vals[c+1]
			if v := float64(hi); math.IsNaN(v) || math.IsInf(v, 0) {
				break
			}
			mid := float32((float64(lo) + float64(hi)) / 2)
			if float64(mid)*2 != float64(lo)+float64(hi) {
				continue // BF16's first: no float32 is the middle
			}
			even := c + c&1
			if dt == tensor.F8E8M0 {
				even = c + 1
			}
			below, above := math.Nextafter32(mid, lo), math.Nextafter32(mid, hi)
			got := []uint32{code(t, dt, below), code(t, dt, mid), code(t, dt, above)}
			if want := []uint32{uint32(c), uint32(even), uint32(c + 1)}; !assert.ObjectsAreEqual(want, got) {
				t.Fatalf("%v between %v and %v: %x, not %x", dt, lo, hi, got, want)
			}
			if dt != tensor.F8E8M0 && c > 0 {
				require.Equal(t, uint32(half+c), code(t, dt, math.Nextafter32(-mid, -lo)), "%v of -%v", dt, below)
			}
		}
	}
}

// TestFloat16Decode has all codes of the two formats by the definition of IEEE 754.
func TestFloat16Decode(t *testing.T) {
	formula := func(code uint32, man, bias int) float32 {
		exp := int(code&0x7fff) >> man
		frac := float64(code&(1<<man-1)) / float64(int(1)<<man)
		v := math.Ldexp(1+frac, exp-bias)
		switch {
		case exp == 2*bias+1 && frac != 0:
			v = math.NaN()
		case exp == 2*bias+1:
			v = math.Inf(1)
		case exp == 0:
			v = math.Ldexp(frac, 1-bias)
		}
		return float32(math.Copysign(v, 1-2*float64(code>>15)))
	}
	for c := range uint32(1 << 16) {
		if got, want := tensor.Float16(c).Float32(), formula(c, 10, 15); !same(got, want) {
			t.Fatalf("F16 %#x is %v, not %v", c, want, got)
		}
		if got, want := tensor.BFloat16(c).Float32(), formula(c, 7, 127); !same(got, want) {
			t.Fatalf("BF16 %#x is %v, not %v", c, want, got)
		}
	}
}

// TestFloatTypes has the Go types agree with the conversion of tensors.
func TestFloatTypes(t *testing.T) {
	for _, v := range []float32{0, 1, -1.75, 448, 1e9, float32(math.Inf(-1)), 3e-5} {
		for dt, f := range map[tensor.DType]func() (uint32, float32){
			tensor.F16:  func() (uint32, float32) { x := tensor.Float16From(v); return uint32(x), x.Float32() },
			tensor.BF16: func() (uint32, float32) { x := tensor.BFloat16From(v); return uint32(x), x.Float32() },
			tensor.F8E5M2: func() (uint32, float32) {
				x := tensor.Float8E5M2From(v)
				return uint32(x), x.Float32()
			},
			tensor.F8E4M3: func() (uint32, float32) {
				x := tensor.Float8E4M3From(v)
				return uint32(x), x.Float32()
			},
			tensor.F8E8M0: func() (uint32, float32) {
				x := tensor.Float8E8M0From(v)
				return uint32(x), x.Float32()
			},
			tensor.F8E4M3FNUZ: func() (uint32, float32) {
				x := tensor.Float8E4M3FNUZFrom(v)
				return uint32(x), x.Float32()
			},
			tensor.F8E5M2FNUZ: func() (uint32, float32) {
				x := tensor.Float8E5M2FNUZFrom(v)
				return uint32(x), x.Float32()
			},
		} {
			c, val := f()
			assert.Equal(t, code(t, dt, v), c, "%v of %v", dt, v)
			assert.True(t, same(floats(t, codes(t, dt))[c], val), "%v of %v", dt, v)
		}
	}
}
