package tensor

import "fmt"

// DType is an element type. Its zero value is invalid.
type DType uint8

// The dtypes of the safetensors format.
const (
	Invalid    DType = iota
	Bool             // one byte, 0 or 1
	F4               // E2M1 of OCP MX, two in a byte
	F6E2M3           // of OCP MX, four in three bytes
	F6E3M2           // of OCP MX, four in three bytes
	U8               //
	I8               //
	F8E5M2           // OCP 8-bit float: IEEE-like, with infinities
	F8E4M3           // OCP 8-bit float, the "fn" kind: no infinities
	F8E8M0           // a power of two, the scale of OCP MX
	F8E4M3FNUZ       // no infinities, no negative zero
	F8E5M2FNUZ       // no infinities, no negative zero
	I16              //
	U16              //
	F16              // IEEE binary16
	BF16             // the upper half of a float32
	I32              //
	U32              //
	F32              //
	C64              // two float32: real, imaginary
	F64              //
	I64              //
	U64              //
)

var dtypes = [...]struct {
	name string
	bits int
}{
	Invalid: {"invalid", 0}, Bool: {"BOOL", 8}, F4: {"F4", 4}, F6E2M3: {"F6_E2M3", 6}, F6E3M2: {"F6_E3M2", 6},
	U8: {"U8", 8}, I8: {"I8", 8}, F8E5M2: {"F8_E5M2", 8}, F8E4M3: {"F8_E4M3", 8}, F8E8M0: {"F8_E8M0", 8},
	F8E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 8}, I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16},
	BF16: {"BF16", 16}, I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32}, C64: {"C64", 64}, F64: {"F64", 64},
	I64: {"I64", 64}, U64: {"U64", 64},
}

// Valid reports whether d is one of the dtypes.
func (d DType) Valid() bool { return d > Invalid && int(d) < len(dtypes) }

// Bits returns the size of an element in bits, or 0 if d is not valid.
func (d DType) Bits() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].bits
}

// String returns the name of d in safetensors files, such as "BF16".
func (d DType) String() string {
	if int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// ParseDType is the inverse of String.
func ParseDType(name string) (DType, error) {
	for d := Bool; d.Valid(); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return Invalid, fmt.Errorf("tensor: no dtype is named %q", name)
}
