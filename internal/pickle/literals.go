package pickle

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"unicode/utf8"
)

// integer returns v as an int64 if it fits, and v otherwise.
func integer(v *big.Int) any {
	if v.IsInt64() {
		return v.Int64()
	}
	return v
}

func opBinInt(m *machine) error {
	v, err := m.uint(4)
	if err != nil {
		return err
	}
	return m.push(int64(int32(v)), 8)
}

func (m *machine) opUint(size int) error {
	v, err := m.uint(size)
	if err != nil {
		return err
	}
	return m.push(int64(v), 8)
}

// opLong reads an int in two's complement, little-endian.
func (m *machine) opLong(size int) error {
	b, err := m.sized(size)
	if err != nil {
		return err
	}
	if err := m.spend(2 * len(b)); err != nil {
		return err
	}
	return m.push(twosComplement(b), word)
}

func twosComplement(b []byte) any {
	be := slices.Clone(b)
	slices.Reverse(be)
	v := new(big.Int).SetBytes(be)
	if len(be) > 0 && be[0] >= 0x80 {
		v.Sub(v, new(big.Int).Lsh(big.NewInt(1), uint(8*len(be))))
	}
	return integer(v)
}

func opBinFloat(m *machine) error {
	b, err := m.take(8)
	if err != nil {
		return err
	}
	return m.push(math.Float64frombits(binary.BigEndian.Uint64(b)), 8)
}

func (m *machine) opText(size int) error {
	b, err := m.sized(size)
	if err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return m.malformed("a str that is not UTF-8")
	}
	if err := m.spend(len(b)); err != nil {
		return err
	}
	return m.push(string(b), word)
}

func (m *machine) opBytes(size int, mutable bool) error {
	b, err := m.sized(size)
	if err != nil {
		return err
	}
	return m.push(&blob{b: b, mutable: mutable}, blobSize)
}
