package pickle

import (
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// integer returns v as an int64 if it fits, and v otherwise.
func integer(v *big.Int) any {
	if v.IsInt64() {
		return v.Int64()
	}
	return v
}

// decimal reads a line with an index of the memo.
func (m *machine) decimal() (uint64, error) {
	s, err := m.line()
	if err != nil {
		return 0, err
	}
	i, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, m.malformed("%.40q is no memo number", s)
	}
	return i, nil
}

// opInt reads protocol 0's int or bool.
func opInt(m *machine) error {
	s, err := m.line()
	switch {
	case err != nil:
		return err
	case s == "00":
		return m.push(false, 0)
	case s == "01":
		return m.push(true, 0)
	}
	return m.pushDecimal(s)
}

func opLong(m *machine) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	return m.pushDecimal(strings.TrimSuffix(s, "L"))
}

func (m *machine) pushDecimal(s string) error {
	digits := strings.TrimPrefix(s, "-")
	if len(digits) > maxDigits {
		return m.fail(ErrTooLarge, "an int of %d digits, the limit is %d", len(digits), maxDigits)
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return m.malformed("%.40q is no int", s)
	}
	v, _ := new(big.Int).SetString(s, 10)
	return m.push(integer(v), word+len(s))
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

func opFloat(m *machine) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	v, err := strconv.ParseFloat(s, 64)
	if strings.ContainsAny(s, "xX_pP") || err != nil && !math.IsInf(v, 0) {
		return m.malformed("%.40q is no float", s)
	}
	return m.push(v, 8)
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
	return m.pushText(b)
}

func (m *machine) pushText(b []byte) error {
	if !utf8.Valid(b) {
		return m.malformed("a str that is not UTF-8")
	}
	if err := m.spend(len(b)); err != nil {
		return err
	}
	return m.push(string(b), word)
}

// opBinString reads Python 2's str, which Python 3 accepts if it is ASCII.
func (m *machine) opBinString(size int) error {
	b, err := m.sized(size)
	if err != nil {
		return err
	}
	return m.pushASCII(b)
}

func (m *machine) pushASCII(b []byte) error {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return m.malformed("a str of Python 2 that is not ASCII")
		}
	}
	return m.pushText(b)
}

// opString reads Python 2's str in source form: quoted, with escapes.
func opString(m *machine) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	if n := len(s); n < 2 || s[0] != s[n-1] || s[0] != '\'' && s[0] != '"' {
		return m.malformed("%.40q is not quoted", s)
	}
	var b []byte
	for s = s[1 : len(s)-1]; s != ""; {
		if s[0] != '\\' {
			b, s = append(b, s[0]), s[1:]
			continue
		}
		c, rest, ok := unescape(s[1:])
		if !ok {
			return m.malformed("%.10q is no escape", s)
		}
		b, s = append(b, c), rest
	}
	return m.pushASCII(b)
}

// unescape returns the byte of the escape sequence at the front of s, after the backslash.
func unescape(s string) (c byte, rest string, ok bool) {
	if s == "" {
		return 0, "", false
	}
	if i := strings.IndexByte(`\'"nrtabfv`, s[0]); i >= 0 {
		return "\\'\"\n\r\t\a\b\f\v"[i], s[1:], true
	}
	size, base, from := 3, 8, 0
	if s[0] == 'x' {
		size, base, from = 2, 16, 1
	}
	if len(s) < from+size {
		return 0, "", false
	}
	v, err := strconv.ParseUint(s[from:from+size], base, 8)
	return byte(v), s[from+size:], err == nil
}

// opUnicode reads protocol 0's str: Latin-1 with \u and \U.
func opUnicode(m *machine) error {
	s, err := m.line()
	if err != nil {
		return err
	}
	var b []byte
	for s != "" {
		r, rest, ok := rawUnicode(s)
		if !ok {
			return m.malformed("%.12q is no character", s)
		}
		b, s = utf8.AppendRune(b, r), rest
	}
	return m.pushText(b)
}

// rawUnicode returns the character at the front of s.
func rawUnicode(s string) (r rune, rest string, ok bool) {
	size := 0
	switch {
	case strings.HasPrefix(s, `\u`):
		size = 4
	case strings.HasPrefix(s, `\U`):
		size = 8
	default:
		return rune(s[0]), s[1:], true
	}
	if len(s) < 2+size {
		return 0, "", false
	}
	v, err := strconv.ParseUint(s[2:2+size], 16, 32)
	return rune(v), s[2+size:], err == nil && v <= utf8.MaxRune && utf8.ValidRune(rune(v))
}

func (m *machine) opBytes(size int, mutable bool) error {
	b, err := m.sized(size)
	if err != nil {
		return err
	}
	return m.push(&blob{b: b, mutable: mutable}, blobSize)
}
