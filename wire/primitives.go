package wire

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"
)

func appendU16(b []byte, v uint16) []byte { return binary.LittleEndian.AppendUint16(b, v) }
func appendU32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func appendU64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }
func appendInt(b []byte, v int) []byte    { return appendU32(b, uint32(int32(v))) }

func appendDuration(b []byte, d time.Duration) []byte { return appendU64(b, uint64(d)) }

func appendString(b []byte, s string) []byte {
	return append(appendU32(b, uint32(len(s))), s...)
}

func appendBytes(b, v []byte) []byte {
	return append(appendU32(b, uint32(len(v))), v...)
}

func appendStrings(b []byte, ss []string) []byte {
	b = appendU32(b, uint32(len(ss)))
	for _, s := range ss {
		b = appendString(b, s)
	}
	return b
}

func appendInts(b []byte, vs []int) []byte {
	b = appendU32(b, uint32(len(vs)))
	for _, v := range vs {
		b = appendInt(b, v)
	}
	return b
}

// nilLen is the length of a nil value, which differs from an empty one.
const nilLen = 1<<32 - 1

func appendValues(b []byte, vs [][]byte) []byte {
	b = appendU32(b, uint32(len(vs)))
	for _, v := range vs {
		if v == nil {
			b = appendU32(b, nilLen)
			continue
		}
		b = appendBytes(b, v)
	}
	return b
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// finish writes the length of the body into the header at start.
func finish(b []byte, start int) []byte {
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-HeaderLen))
	return b
}

// parser takes values from the front of b. After its first error all values are zero, so callers
// check the error once, at the end.
type parser struct {
	b   []byte
	err error
}

// present fails if a part whose flag is set is 0: 0 is encoded by omitting the part.
func (p *parser) present(v uint64) {
	if v == 0 {
		p.fail(ErrFlags)
	}
}

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
	p.b = nil
}

// end returns the first error, or ErrTrailing if bytes are left.
func (p *parser) end() error {
	if p.err == nil && len(p.b) > 0 {
		return ErrTrailing
	}
	return p.err
}

func (p *parser) take(n int) []byte {
	if n > len(p.b) {
		p.fail(ErrTruncated)
		return nil
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}

func (p *parser) u8() uint8 {
	if v := p.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (p *parser) bool() bool {
	v := p.u8()
	if v > 1 {
		p.fail(ErrFlags)
	}
	return v == 1
}

func (p *parser) u16() uint16 {
	if v := p.take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (p *parser) u32() uint32 {
	if v := p.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (p *parser) u64() uint64 {
	if v := p.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (p *parser) int() int                { return int(int32(p.u32())) }
func (p *parser) duration() time.Duration { return time.Duration(p.u64()) }

// bytes aliases b. It is nil only if the parser has failed.
func (p *parser) bytes(limit int) []byte {
	n := p.u32()
	if n > uint32(limit) {
		p.fail(ErrTooLarge)
		return nil
	}
	return p.take(int(n))
}

// string aliases b, too: nothing is copied.
func (p *parser) string(limit int) string {
	v := p.bytes(limit)
	return unsafe.String(unsafe.SliceData(v), len(v))
}

// count returns the number of elements that follow, each of at least size bytes. A number that
// cannot fit is refused before memory is allocated for it.
func (p *parser) count(size int) int {
	n := p.u32()
	if int64(n)*int64(size) > int64(len(p.b)) {
		p.fail(ErrTruncated)
		return 0
	}
	return int(n)
}

// strings reuses the memory of dst. It is nil only if the parser has failed.
func (p *parser) strings(dst []string, limit int) []string {
	n := p.count(4)
	if n > MaxKeys {
		p.fail(ErrTooLarge)
		return nil
	}
	if dst == nil {
		dst = make([]string, 0, n)
	}
	for range n {
		dst = append(dst, p.string(limit))
	}
	return dst
}

func (p *parser) ints() []int {
	n := p.count(4)
	if n == 0 {
		return nil
	}
	vs := make([]int, n)
	for i := range vs {
		vs[i] = p.int()
	}
	return vs
}

func (p *parser) values() [][]byte {
	vs := make([][]byte, p.count(4))
	b := p.b
	for i := range vs {
		if len(b) < 4 {
			p.fail(ErrTruncated)
			return vs
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		switch {
		case n == nilLen:
			continue
		case n > MaxReply:
			p.fail(ErrTooLarge)
			return vs
		case int(n) > len(b):
			p.fail(ErrTruncated)
			return vs
		}
		vs[i] = b[:n:n]
		b = b[n:]
	}
	p.b = b
	return vs
}

// AppendParts appends a payload made of parts, one for each rank, for WantPart.
func AppendParts(b []byte, parts [][]byte) []byte { return appendValues(b, parts) }

// ParseParts parses what AppendParts made of n parts, which alias b.
func ParseParts(b []byte, n int) ([][]byte, error) {
	if len(b) < 4 {
		return nil, ErrTruncated
	}
	if got := binary.LittleEndian.Uint32(b); int64(got) != int64(n) {
		return nil, fmt.Errorf("wire: %d parts, not %d", got, n)
	}
	p := parser{b: b}
	parts := p.values()
	return parts, p.end()
}
