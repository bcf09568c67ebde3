package tensor_test

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/tensor"
)

// sixteen are the float types of 16 bits.
var sixteen = map[string]struct {
	from  func(v float32) uint16
	value func(code uint16) float32
}{
	"F16": {
		func(v float32) uint16 { return uint16(tensor.Float16From(v)) },
		func(code uint16) float32 { return tensor.Float16(code).Float32() },
	},
	"BF16": {
		func(v float32) uint16 { return uint16(tensor.BFloat16From(v)) },
		func(code uint16) float32 { return tensor.BFloat16(code).Float32() },
	},
}

func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// TestGolden compares rounding with that of numpy and ml_dtypes: testdata/golden.py says how.
func TestGolden(t *testing.T) {
	f, err := os.Open("testdata/golden.txt")
	require.NoError(t, err)
	defer f.Close()
	lines := 0
	for scan := bufio.NewScanner(f); scan.Scan(); lines++ {
		var bits uint32
		var half, brain uint16
		_, err := fmt.Sscanf(scan.Text(), "%x %x %x", &bits, &half, &brain)
		require.NoError(t, err)
		v := math.Float32frombits(bits)
		require.Equal(t, half, sixteen["F16"].from(v), "F16 of %v (%#x)", v, bits)
		require.Equal(t, brain, sixteen["BF16"].from(v), "BF16 of %v (%#x)", v, bits)
	}
	require.Greater(t, lines, 2000)
}

// TestRounding checks that each code survives, and looks between all neighbours: up to the middle the nearest
// is the lower, beyond it the upper, and in the middle the even code.
func TestRounding(t *testing.T) {
	for name, x := range sixteen {
		for c := range uint16(1<<15 - 1) {
			lo, hi := x.value(c), x.value(c+1)
			if lo == lo { // NaN has many codes
				require.Equal(t, [2]uint16{c, c | 1<<15}, [2]uint16{x.from(lo), x.from(-lo)}, "%s of %v", name, lo)
			}
			if v := float64(hi); math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			mid := float32((float64(lo) + float64(hi)) / 2)
			if float64(mid)*2 != float64(lo)+float64(hi) {
				continue // BF16's first: no float32 is the middle
			}
			got := [3]uint16{x.from(math.Nextafter32(mid, lo)), x.from(mid), x.from(math.Nextafter32(mid, hi))}
			require.Equal(t, [3]uint16{c, c + c&1, c + 1}, got, "%s between %v and %v", name, lo, hi)
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
