package tensor

import "math"

// Float16 is IEEE binary16. For the float types that Go does not have, the method Float32 is exact,
// and the function whose name ends in From rounds to the nearest value, ties to the even code. A
// value that is too large becomes an infinity. NaN stays NaN, but its payload may change.
type Float16 uint16

// BFloat16 is the upper half of a float32.
type BFloat16 uint16

// The parts of a float32.
const (
	signBit  = 1 << 31
	mantissa = 23 // bits
	infinity = 0xff << mantissa
	f32NaN   = 0x7fc00000
)

// The parts of a Float16, and of the difference from a float32.
const (
	infinity16 = 0x7c00
	nan16      = 0x7e00
	dropped    = mantissa - 10 // bits of the mantissa that a Float16 does not have
	bias       = 127 - 15      // difference of the exponents' biases
)

// Float16From returns the nearest Float16; ±Inf from ±65520.
func Float16From(v float32) Float16 {
	b := math.Float32bits(v)
	sign := Float16(b >> 16 & 0x8000)
	b &^= signBit
	switch {
	case b > infinity:
		return sign | nan16
	case b < (bias+1)<<mantissa: // below the smallest normal
		// The sum has an ulp of the smallest subnormal, so that the addition rounds to the nearest,
		// ties to even.
		const bound = 0.5
		return sign | Float16(math.Float32bits(math.Float32frombits(b)+bound)-math.Float32bits(bound))
	}
	b += 1<<(dropped-1) - 1 + b>>dropped&1
	return sign | Float16(min(b>>dropped-bias<<10, infinity16))
}

// Float32 returns the value of f.
func (f Float16) Float32() float32 {
	// A multiplication replaces the exponent's bias with float32's. It is exact, for subnormals too.
	b := uint32(f&0x7fff) << dropped
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
