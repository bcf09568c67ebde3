package wire

import (
	"encoding/binary"
	"math"
)

// complete reports whether b begins with a whole value: each length in it is that of something that
// follows. So no length makes a decoder allocate more than the elements that are there.
func complete(b []byte) bool {
	for pending := uint64(1); pending > 0; pending-- { // values that follow
		skip, values, n := lengths(b)
		if n == 0 || uint64(len(b)-n) < skip || uint64(len(b)-n)-skip < pending-1+values {
			return false // each value has at least a byte
		}
		b = b[uint64(n)+skip:]
		pending += values
	}
	return true
}

// lengths returns what follows the first n bytes of a value: its other bytes, or the number of the
// values in it. n is 0 if b has no value.
func lengths(b []byte) (skip, values uint64, n int) {
	if len(b) == 0 {
		return 0, 0, 0
	}
	c := b[0]
	switch { // https://github.com/msgpack/msgpack/blob/master/spec.md#formats
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // a small integer, nil or a boolean
		return 0, 0, 1
	case c <= 0x8f: // a small map
		return 0, 2 * uint64(c&0xf), 1
	case c <= 0x9f: // a small list
		return 0, uint64(c & 0xf), 1
	case c <= 0xbf: // a short text
		return uint64(c & 0x1f), 0, 1
	case c >= 0xc4 && c <= 0xc6: // bytes
		return sized(b, 1<<(c-0xc4), 1, 0)
	case c >= 0xc7 && c <= 0xc9: // an extension, which begins with its type
		skip, _, n = sized(b, 1<<(c-0xc7), 1, 0)
		return skip + 1, 0, n
	case c == 0xca, c == 0xcb: // a float
		return 4 << (c - 0xca), 0, 1
	case c >= 0xcc && c <= 0xcf: // an unsigned integer
		return 1 << (c - 0xcc), 0, 1
	case c >= 0xd0 && c <= 0xd3: // an integer
		return 1 << (c - 0xd0), 0, 1
	case c >= 0xd4 && c <= 0xd8: // an extension of a fixed length
		return 1 + 1<<(c-0xd4), 0, 1
	case c >= 0xd9 && c <= 0xdb: // a text
		return sized(b, 1<<(c-0xd9), 1, 0)
	case c == 0xdc, c == 0xdd: // a list
		return sized(b, 2<<(c-0xdc), 0, 1)
	case c == 0xde, c == 0xdf: // a map
		return sized(b, 2<<(c-0xde), 0, 2)
	}
	return 0, 0, 0 // 0xc1 is not used
}

// sized returns lengths of a value whose length has size bytes, in bytes or in values for each.
func sized(b []byte, size int, bytes, values uint64) (skip, count uint64, n int) {
	if len(b) <= size {
		return math.MaxUint32, 0, len(b) // more than there is
	}
	var length uint64
	switch size {
	case 1:
		length = uint64(b[1])
	case 2:
		length = uint64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		length = uint64(binary.BigEndian.Uint32(b[1:]))
	}
	return length * bytes, length * values, 1 + size
}
