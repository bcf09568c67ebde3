package tensor

import "math"

// Float16 is IEEE binary16. For all these float types, which Go does not have, the method Float32
// is exact, and the function whose name ends in From rounds to the nearest value, ties to the even
// code. NaN stays NaN, but its payload may change. A value that is too large is converted as
// ml_dtypes for Python does it: to an infinity as Float16, BFloat16 and Float8E5M2, and to NaN as
// Float8E4M3, Float8E4M3FNUZ and Float8E5M2FNUZ, which have no infinity. PyTorch does the same,
// except that it saturates Float8E4M3 to ±448: clamp before the conversion to get that.
type Float16 uint16

// BFloat16 is the upper half of a float32.
type BFloat16 uint16

// Float8E5M2 is the IEEE-like OCP 8-bit float, with infinities.
type Float8E5M2 uint8

// Float8E4M3 is the OCP 8-bit float without infinities, elsewhere named with the suffix "fn".
type Float8E4M3 uint8

// Float8E8M0 is a power of two: 2 to the power of its code minus 127. The code 255 is NaN.
type Float8E8M0 uint8

// Float8E4M3FNUZ has neither infinities nor a negative zero.
type Float8E4M3FNUZ uint8

// Float8E5M2FNUZ has neither infinities nor a negative zero.
type Float8E5M2FNUZ uint8

// format describes a float type of at most 16 bits: sign, exponent, mantissa.
type format struct {
	exp, man int    // number of bits
	bias     int    // of the exponent
	max      uint32 // the largest code of a number, without its sign
	inf, nan uint32 // the codes of a value that is too large, and of NaN
	fnuz     bool   // the sign bit alone is NaN: neither NaN nor zero has a sign
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

// The parts of a float32.
const (
	signBit  = 1 << 31
	mantissa = 23 // bits
	infinity = 0xff << mantissa
)

// encode returns the code of v.
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

// signed returns code with the sign, if that code has one.
func (f *format) signed(code, sign uint32) uint32 {
	if f.fnuz && (code == 0 || code == f.nan) {
		return code
	}
	return code | sign
}

// round returns the code that is nearest to b, the bits of a float32 ≥ 0, or a code above all
// others if b is larger than their values.
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

// decode returns the value of a code.
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
	// A multiplication replaces the exponent's bias with float32's. It is exact, for subnormals
	// too.
	scale := math.Float32frombits(uint32(127+127-f.bias) << mantissa)
	return math.Float32frombits(signBits | math.Float32bits(math.Float32frombits(code<<(mantissa-f.man))*scale))
}

const f32NaN = 0x7fc00000

// table returns the values of all codes. If there are fewer than 256 codes, the values repeat.
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

// Float16From returns the nearest Float16; ±Inf from ±65520.
func Float16From(v float32) Float16 { return Float16(float16.encode(v)) }

// Float32 returns the value of f.
func (f Float16) Float32() float32 {
	// Except for infinity and NaN, this is (*format).decode.
	b := uint32(f&0x7fff) << (mantissa - 10)
	v := math.Float32bits(math.Float32frombits(b) * 0x1p112)
	if b >= 0x1f<<mantissa {
		v = b | infinity
	}
	return math.Float32frombits(uint32(f>>15)<<31 | v)
}

// BFloat16From returns the nearest BFloat16.
func BFloat16From(v float32) BFloat16 {
	b := math.Float32bits(v)
	if b&^signBit > infinity {
		return BFloat16(b>>31<<15 | f32NaN>>16)
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 returns the value of f.
func (f BFloat16) Float32() float32 { return math.Float32frombits(uint32(f) << 16) }

// Float8E5M2From returns the nearest Float8E5M2; ±Inf from ±61440.
func Float8E5M2From(v float32) Float8E5M2 { return Float8E5M2(float8E5M2.encode(v)) }

// Float32 returns the value of f.
func (f Float8E5M2) Float32() float32 { return tableE5M2[f] }

// Float8E4M3From returns the nearest Float8E4M3; NaN beyond ±464.
func Float8E4M3From(v float32) Float8E4M3 { return Float8E4M3(float8E4M3.encode(v)) }

// Float32 returns the value of f.
func (f Float8E4M3) Float32() float32 { return tableE4M3[f] }

// Float8E4M3FNUZFrom returns the nearest Float8E4M3FNUZ; NaN from ±248.
func Float8E4M3FNUZFrom(v float32) Float8E4M3FNUZ { return Float8E4M3FNUZ(float8E4M3FNUZ.encode(v)) }

// Float32 returns the value of f.
func (f Float8E4M3FNUZ) Float32() float32 { return tableE4M3FNUZ[f] }

// Float8E5M2FNUZFrom returns the nearest Float8E5M2FNUZ; NaN from ±61440.
func Float8E5M2FNUZFrom(v float32) Float8E5M2FNUZ { return Float8E5M2FNUZ(float8E5M2FNUZ.encode(v)) }

// Float32 returns the value of f.
func (f Float8E5M2FNUZ) Float32() float32 { return tableE5M2FNUZ[f] }

// Float8E8M0From returns the nearest power of two, ties to the larger one, and at least 2^-127.
// Values that are not above 0, and values from 1.5·2^127, become NaN. (PyTorch differs: it drops
// the sign, and converts 0 to the smallest power.)
func Float8E8M0From(v float32) Float8E8M0 {
	b := math.Float32bits(v)
	switch {
	case b == 0 || b >= infinity: // true for all values with a sign
		return 0xff
	case b < 1<<mantissa: // a subnormal: below 2^-126
		return Float8E8M0(b / (3 << (mantissa - 2))) // 1 from 1.5·2^-127
	}
	return Float8E8M0((b + 1<<(mantissa-1)) >> mantissa)
}

// Float32 returns the value of f.
func (f Float8E8M0) Float32() float32 {
	switch f {
	case 0:
		return 0x1p-127
	case 0xff:
		return math.Float32frombits(f32NaN)
	}
	return math.Float32frombits(uint32(f) << mantissa)
}
