package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"
	"unsafe"
)

func appendU32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func appendU64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

// nilLen is the length of a nil value, which differs from an empty one.
const nilLen = 1<<32 - 1

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

// pass is a pass over the fields of a body, which appends them to b, or, if it parses, takes them
// from the front of b: each body lists its fields once. What a method gets is written only by a pass
// that parses, and is zero before. After the first error all is left zero, so callers check the error
// once, at the end.
type pass struct {
	b      []byte
	parses bool
	err    error
}

// present fails if a part whose flag is set is 0: 0 is encoded by omitting the part.
func (p *pass) present(v uint64) {
	if v == 0 {
		p.fail(ErrFlags)
	}
}

func (p *pass) fail(err error) {
	if p.err == nil {
		p.err = err
	}
	p.b = nil
}

// end returns the first error, or ErrTrailing if bytes are left.
func (p *pass) end() error {
	if p.err == nil && len(p.b) > 0 {
		return ErrTrailing
	}
	return p.err
}

// take returns n bytes, which alias b, or nil after an error.
func (p *pass) take(n int) []byte {
	if n > len(p.b) {
		p.fail(ErrTruncated)
		return nil
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}

func (p *pass) u8(v *uint8) {
	if !p.parses {
		p.b = append(p.b, *v)
	} else if b := p.take(1); b != nil {
		*v = b[0]
	}
}

func (p *pass) u16(v *uint16) {
	if !p.parses {
		p.b = binary.LittleEndian.AppendUint16(p.b, *v)
	} else if b := p.take(2); b != nil {
		*v = binary.LittleEndian.Uint16(b)
	}
}

func (p *pass) u32(v *uint32) {
	if !p.parses {
		p.b = appendU32(p.b, *v)
	} else if b := p.take(4); b != nil {
		*v = binary.LittleEndian.Uint32(b)
	}
}

func (p *pass) u64(v *uint64) {
	if !p.parses {
		p.b = appendU64(p.b, *v)
	} else if b := p.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (p *pass) i32(v *int32) {
	if !p.parses {
		p.b = appendU32(p.b, uint32(*v))
	} else if b := p.take(4); b != nil {
		*v = int32(binary.LittleEndian.Uint32(b))
	}
}

func (p *pass) i64(v *int64) {
	if !p.parses {
		p.b = appendU64(p.b, uint64(*v))
	} else if b := p.take(8); b != nil {
		*v = int64(binary.LittleEndian.Uint64(b))
	}
}

// int is of 32 bits in a body.
func (p *pass) int(v *int) {
	if !p.parses {
		p.b = appendU32(p.b, uint32(int32(*v)))
	} else if b := p.take(4); b != nil {
		*v = int(int32(binary.LittleEndian.Uint32(b)))
	}
}

// int64 is of 64 bits in a body.
func (p *pass) int64(v *int) {
	n := int64(*v)
	if p.i64(&n); p.parses {
		if *v = int(n); int64(*v) != n {
			p.fail(ErrTooLarge)
		}
	}
}

func (p *pass) bool(v *bool) {
	n := boolByte(*v)
	p.u8(&n)
	if n > 1 {
		p.fail(ErrFlags)
	}
	if p.parses {
		*v = n == 1
	}
}

func (p *pass) code(v *Code)              { p.u16((*uint16)(v)) }
func (p *pass) duration(v *time.Duration) { p.i64((*int64)(v)) }

// bytes parses to a value that aliases b. It is nil only after an error.
func (p *pass) bytes(v *[]byte, limit int) {
	if !p.parses {
		p.b = append(appendU32(p.b, uint32(len(*v))), *v...)
		return
	}
	var n uint32
	p.u32(&n)
	if n > uint32(limit) {
		p.fail(ErrTooLarge)
		return
	}
	*v = p.take(int(n))
}

// optional is bytes for a value that may be nil.
func (p *pass) optional(v *[]byte, limit int) {
	switch {
	case !p.parses && *v == nil:
		p.b = appendU32(p.b, nilLen)
	case p.parses && len(p.b) >= 4 && binary.LittleEndian.Uint32(p.b) == nilLen:
		p.b = p.b[4:]
	default:
		p.bytes(v, limit)
	}
}

// string parses to a value that aliases b, too: nothing is copied.
func (p *pass) string(v *string, limit int) {
	if !p.parses {
		p.b = append(appendU32(p.b, uint32(len(*v))), *v...)
		return
	}
	var b []byte
	p.bytes(&b, limit)
	*v = unsafe.String(unsafe.SliceData(b), len(b))
}

// count is the number n of the elements that follow, each of at least size bytes. A number that
// cannot fit is refused before memory is allocated for it.
func (p *pass) count(n, size int) int {
	v := uint32(n)
	p.u32(&v)
	if p.parses && int64(v)*int64(size) > int64(len(p.b)) {
		p.fail(ErrTruncated)
		return 0
	}
	return int(v)
}

// few is count for at most 255 elements.
func (p *pass) few(n, size int) int {
	v := uint8(n)
	p.u8(&v)
	if p.parses && int(v)*size > len(p.b) {
		p.fail(ErrTruncated)
		return 0
	}
	return int(v)
}

// elements parses n elements into the memory of vs.
func elements[T any](p *pass, vs *[]T, n int, each func(*T)) {
	if p.parses {
		*vs = slices.Grow(*vs, n)[:n]
		clear(*vs)
	}
	for i := range *vs {
		each(&(*vs)[i])
	}
}

func (p *pass) strings(vs *[]string, limit int) {
	n := p.count(len(*vs), 4)
	if p.parses && n > MaxKeys {
		p.fail(ErrTooLarge)
		return
	}
	elements(p, vs, n, func(v *string) { p.string(v, limit) })
}

func (p *pass) ints(vs *[]int) { elements(p, vs, p.count(len(*vs), 4), p.int) }

// nums and values are often of thousands of elements, so they keep b in a variable.

func (p *pass) nums(vs *[]int64) {
	n := p.count(len(*vs), 8)
	if p.parses {
		*vs = make([]int64, n)
	}
	b := p.b
	for i := range *vs {
		if !p.parses {
			b = appendU64(b, uint64((*vs)[i]))
			continue
		}
		(*vs)[i] = int64(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	p.b = b
}

func (p *pass) values(vs *[][]byte) {
	n := p.count(len(*vs), 4)
	b := p.b
	if !p.parses {
		for _, v := range *vs {
			if v == nil {
				b = appendU32(b, nilLen)
			} else {
				b = append(appendU32(b, uint32(len(v))), v...)
			}
		}
		p.b = b
		return
	}
	*vs = make([][]byte, n)
	for i := range *vs {
		if len(b) < 4 {
			p.fail(ErrTruncated)
			return
		}
		n := binary.LittleEndian.Uint32(b)
		b = b[4:]
		switch {
		case n == nilLen:
			continue
		case n > MaxReply:
			p.fail(ErrTooLarge)
			return
		case int(n) > len(b):
			p.fail(ErrTruncated)
			return
		}
		(*vs)[i] = b[:n:n]
		b = b[n:]
	}
	p.b = b
}

// AppendParts appends a payload made of parts, one for each rank, for WantPart.
func AppendParts(b []byte, parts [][]byte) []byte {
	p := pass{b: b}
	p.values(&parts)
	return p.b
}

// ParseParts parses what AppendParts made of n parts, which alias b.
func ParseParts(b []byte, n int) ([][]byte, error) {
	if len(b) < 4 {
		return nil, ErrTruncated
	}
	if got := binary.LittleEndian.Uint32(b); int64(got) != int64(n) {
		return nil, fmt.Errorf("wire: %d parts, not %d", got, n)
	}
	p := pass{b: b, parses: true}
	var parts [][]byte
	p.values(&parts)
	return parts, p.end()
}
