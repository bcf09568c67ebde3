package tensor

import "math"

// Float16 is IEEE binary16. For all the floats here, which Go has no type for, Float32 is exact,
// and the function named From rounds to the nearest, ties to the even code; NaN stays NaN, but its
// payload may change. A value that is too large is converted as ml_dtypes for Python does it: to an
// infinity as Float16, BFloat16 and Float8E5M2, and to NaN as Float8E4M3, Float8E4M3FNUZ and
// Float8E5M2FNUZ, which have no infinity. PyTorch does the same, except that it saturates
// Float8E4M3 to ±448: clamp before the conversion for that.
type Float16 uint16

// BFloat16 is the upper half of a float32.
type BFloat16 uint16

// Float8E5M2 is the OCP 8-bit float that is like those of IEEE.
type Float8E5M2 uint8

// Float8E4M3 is the OCP 8-bit float without infinities, "fn" elsewhere.
type Float8E4M3 uint8

// Float8E8M0 is 2 to the power of it less 127; 255 is NaN.
type Float8E8M0 uint8

// Float8E4M3FNUZ has neither infinities nor a negative zero.
type Float8E4M3FNUZ uint8

// Float8E5M2FNUZ has neither infinities nor a negative zero.
type Float8E5M2FNUZ uint8

// A format is a kind of float of at most 16 bits: sign, exponent, mantissa.
type format struct {
	exp, man int    // how many bits
	bias     int    // of the exponent
	max      uint32 // the largest code that is a number, without its sign
	inf, nan uint32 // what is too large becomes, and what is none
	fnuz     bool   // the sign bit alone is NaN: neither it nor zero has a sign
}

var (
	float16        = format{exp: 5, man: 10, bias: 15, max: 0x7bff, inf: 0x7c00, nan: 0x7e00}
	float8E5M2     = format{exp: 5, man: 2, bias: 15, max: 0x7b, inf: 0x7c, nan: 0x7e}
	float8E4M3     = format{exp: 4, man: 3, bias: 7, max: 0x7e, inf: 0x7f, nan: 0x7f}
	float8E4M3FNUZ = format{exp: 4, man: 3, bias: 8, max: 0x7f, inf: 0x80, nan: 0x80, fnuz: true}
	float8E5M2FNUZ = format{exp: 5, man: 2, bias: 16, max: 0x7f, inf: 0x80, nan: 0x80, fnuz: true}
	float6E2M3     = format{exp: 2, man: 3, bias: 1, max: 0x1f, inf: 0x1f}
	float6E3M2     = format{exp: 3, man: 2, bias: 3, max: 0x1f, inf: 0x1f}
	float4         = format{exp: 2, man: 1, bias: 1, max: 0x7, inf: 0x7}
)

// Parts of a float32.
const (
	signBit  = 1 << 31
	mantissa = 23 // bits
	infinity = 0xff << mantissa
)

// encode is the code of v.
func (f *format) encode(v float32) uint32 {
	b := math.Float32bits(v)
	sign := b >> 31 << (f.exp + f.man)
	b &^= signBit
	if b > infinity {
		return f.signed(f.nan, sign)
	}
	code := f.round(b)
	if code > f.max {
		code = f.inf
	}
	return f.signed(code, sign)
}

// signed is code with the sign, if it takes one.
func (f *format) signed(code, sign uint32) uint32 {
	if f.fnuz && (code == 0 || code == f.nan) {
		return code
	}
	return code | sign
}

// round is the code that is next to b, the bits of a float32 ≥ 0; or one above all others if b is
// larger than them.
func (f *format) round(b uint32) uint32 {
	if b < uint32(128-f.bias)<<mantissa { // below the smallest normal
		// The sum has an ulp of the smallest subnormal, so that the addition rounds to the nearest,
		// ties to even.
		bound := math.Float32frombits(uint32(127+1-f.bias-f.man+mantissa) << mantissa)
		return math.Float32bits(math.Float32frombits(b)+bound) - math.Float32bits(bound)
	}
	drop := mantissa - f.man
	b += 1<<(drop-1) - 1 + b>>drop&1
	return b>>drop - uint32(127-f.bias)<<f.man
}

// decode is the value of a code.
func (f *format) decode(code uint32) float32 {
	signBits, code := code>>(f.exp+f.man)<<31, code&(1<<(f.exp+f.man)-1)
	switch {
	case f.fnuz && code == 0 && signBits != 0:
		return math.Float32frombits(f32NaN)
	case code > f.max && code == f.inf && f.inf != f.nan:
		return math.Float32frombits(signBits | infinity)
	case code > f.max:
		return math.Float32frombits(signBits | f32NaN)
	}
	// The exponent's bias is made float32's by a multiplication, which is exact, for subnormals
	// too.
	scale := math.Float32frombits(uint32(127+127-f.bias) << mantissa)
	return math.Float32frombits(signBits | math.Float32bits(math.Float32frombits(code<<(mantissa-f.man))*scale))
}

const f32NaN = 0x7fc00000

// table is the values of all codes; the rest, where there are less than 256 codes, begins again
// with the first.
func (f *format) table() (t [256]float32) {
	for i := range t {
		t[i] = f.decode(uint32(i) & (1<<(1+f.exp+f.man) - 1))
	}
	return t
}

// The values of all codes of the formats of at most 8 bits.
var (
	tableE5M2     = float8E5M2.table()
	tableE4M3     = float8E4M3.table()
	tableE4M3FNUZ = float8E4M3FNUZ.table()
	tableE5M2FNUZ = float8E5M2FNUZ.table()
	tableE2M3     = float6E2M3.table()
	tableE3M2     = float6E3M2.table()
	tableE2M1     = float4.table()
)

// Float16From is the nearest Float16; ±Inf from ±65520.
func Float16From(v float32) Float16 { return Float16(float16.encode(v)) }

// Float32 is the value of f.
func (f Float16) Float32() float32 {
	// Infinity and NaN aside, as (*format).decode has it.
	b := uint32(f&0x7fff) << (mantissa - 10)
	v := math.Float32bits(math.Float32frombits(b) * 0x1p112)
	if b >= 0x1f<<mantissa {
		v = b | infinity
	}
	return math.Float32frombits(uint32(f>>15)<<31 | v)
}

// BFloat16From is the nearest BFloat16.
func BFloat16From(v float32) BFloat16 {
	b := math.Float32bits(v)
	if b&^signBit > infinity {
		return BFloat16(b>>31<<15 | f32NaN>>16)
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 is the value of f.
func (f BFloat16) Float32() float32 { return math.Float32frombits(uint32(f) << 16) }

// Float8E5M2From is the nearest Float8E5M2; ±Inf from ±61440.
func Float8E5M2From(v float32) Float8E5M2 { return Float8E5M2(float8E5M2.encode(v)) }

// Float32 is the value of f.
func (f Float8E5M2) Float32() float32 { return tableE5M2[f] }

// Float8E4M3From is the nearest Float8E4M3; NaN beyond ±464.
func Float8E4M3From(v float32) Float8E4M3 { return Float8E4M3(float8E4M3.encode(v)) }

// Float32 is the value of f.
func (f Float8E4M3) Float32() float32 { return tableE4M3[f] }

// Float8E4M3FNUZFrom is the nearest Float8E4M3FNUZ; NaN from ±248.
func Float8E4M3FNUZFrom(v float32) Float8E4M3FNUZ { return Float8E4M3FNUZ(float8E4M3FNUZ.encode(v)) }

// Float32 is the value of f.
func (f Float8E4M3FNUZ) Float32() float32 { return tableE4M3FNUZ[f] }

// Float8E5M2FNUZFrom is the nearest Float8E5M2FNUZ; NaN from ±61440.
func Float8E5M2FNUZFrom(v float32) Float8E5M2FNUZ { return Float8E5M2FNUZ(float8E5M2FNUZ.encode(v)) }

// Float32 is the value of f.
func (f Float8E5M2FNUZ) Float32() float32 { return tableE5M2FNUZ[f] }

// Float8E8M0From is the nearest power of two, ties to the larger, at least 2^-127. What is no
// number above 0, or from 1.5·2^127, is NaN. (PyTorch differs: it drops the sign, and makes 0 the
// smallest power.)
func Float8E8M0From(v float32) Float8E8M0 {
	b := math.Float32bits(v)
	switch {
	case b == 0 || b >= infinity: // which all with a sign are
		return 0xff
	case b < 1<<mantissa: // a subnormal: below 2^-126
		return Float8E8M0(b / (3 << (mantissa - 2))) // 1 from 1.5·2^-127
	}
	return Float8E8M0((b + 1<<(mantissa-1)) >> mantissa)
}

// Float32 is the value of f.
func (f Float8E8M0) Float32() float32 {
	switch f {
	case 0:
		return 0x1p-127
	case 0xff:
		return math.Float32frombits(f32NaN)
	}
	return math.Float32frombits(uint32(f) << mantissa)
}
