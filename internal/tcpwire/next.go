package tcpwire

import (
	"encoding/binary"
	"fmt"
)

// Cursor is the position up to which a Next function has scanned an incomplete message. The zero
// value is the start of a message; Next resets it when it has found the end.
type Cursor struct {
	at   int    // bytes that have been scanned
	part int    // the next part
	left uint64 // missing bytes or items of an open part
	open bool   // the count of the part has been read
}

// NextRequest finds the end of the request at the front of b. If the request is complete, n is its
// length. Otherwise n is more than len(b), and b needs at least n bytes before the next call can
// find the end. Between calls b may move, but must only grow.
func NextRequest(b []byte, c *Cursor, lim Limits) (n int, whole bool, err error) {
	if len(b) == 0 {
		return 1, false, nil
	}
	op, err := operation(b[0])
	if err != nil {
		return 0, false, err
	}
	c.at = max(c.at, 1)
	return c.next(b, op, op.parts(&requests), 0, lim)
}

// operation returns the operation with a number.
func operation(number byte) (Op, error) {
	if op := Op(number); op < opEnd {
		return op, nil
	}
	return 0, fmt.Errorf("%w: number %d", ErrUnknownOp, number)
}

// NextReply is NextRequest for the reply to a request with operation op and keys keys.
func NextReply(b []byte, op Op, keys int, c *Cursor, lim Limits) (n int, whole bool, err error) {
	if op >= opEnd {
		return 0, false, fmt.Errorf("%w: %v", ErrUnknownOp, op)
	}
	return c.next(b, op, op.parts(&replies), keys, lim)
}

func (c *Cursor) next(b []byte, op Op, parts []part, keys int, lim Limits) (n int, whole bool, err error) {
	s := scan{b: b, Cursor: c, keys: keys, lim: lim.withDefaults()}
	for ; c.part < len(parts); c.part++ {
		end, err := s.skip(parts[c.part])
		if err == nil && end > s.lim.Message {
			err = fmt.Errorf("%w: more than %d bytes", ErrTooLarge, s.lim.Message)
		}
		if err != nil {
			return 0, false, fmt.Errorf("%w (%v)", err, op)
		}
		if end > len(b) {
			return end, false, nil
		}
		c.at, c.open = end, false
	}
	n = c.at
	*c = Cursor{}
	return n, true, nil
}

// scan scans the part of a message that has arrived.
type scan struct {
	*Cursor
	b    []byte
	keys int // of the request that is answered
	lim  Limits
}

// skip returns the end of the part, or the number of bytes that it takes to know more.
func (s *scan) skip(p part) (end int, err error) {
	switch p {
	case pByte:
		return s.at + 1, nil
	case pWord:
		return s.at + 4, nil
	case pInt:
		return s.at + 8, nil
	case pMagic:
		return s.magic()
	case pKey:
		return s.sized(s.lim.Key)
	case pValue, pOld:
		return s.sized(s.lim.Value)
	case pKeys:
		return s.list(1, s.lim.Key, s.lim.Key)
	case pPairs:
		return s.list(2, s.lim.Key, s.lim.Value)
	case pValues:
		if !s.open {
			s.open, s.left = true, uint64(max(s.keys, 0))
		}
		return s.items(s.lim.Value, s.lim.Value)
	default:
		return s.pop()
	}
}

// magic checks the number byte by byte, and fails at the first wrong one.
func (s *scan) magic() (end int, err error) {
	end = s.at + 4
	for i := s.at; i < min(end, len(s.b)); i++ {
		if s.b[i] != Preface[1+i-s.at] {
			return 0, ErrMagic
		}
	}
	return end, nil
}

// sized returns the end of the bytes after a length.
func (s *scan) sized(limit int) (end int, err error) {
	if len(s.b) < s.at+8 {
		return s.at + 8, nil
	}
	n := binary.LittleEndian.Uint64(s.b[s.at:])
	if n > uint64(limit) {
		return 0, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, n, limit)
	}
	return s.at + 8 + int(n), nil
}

// list returns the end of a count and that many groups of items.
func (s *scan) list(group uint64, even, odd int) (end int, err error) {
	if !s.open {
		if len(s.b) < s.at+8 {
			return s.at + 8, nil
		}
		n := binary.LittleEndian.Uint64(s.b[s.at:])
		if n > uint64(s.lim.Keys) {
			return 0, fmt.Errorf("%w: %d keys, the limit is %d", ErrTooLarge, n, s.lim.Keys)
		}
		s.at, s.open, s.left = s.at+8, true, n*group
	}
	return s.items(even, odd)
}

// items returns the end of the rest of a list. The limit of an item is even or odd, depending on
// whether the number of items left is even or odd.
func (s *scan) items(even, odd int) (end int, err error) {
	for s.left > 0 {
		limit := even
		if s.left%2 == 1 {
			limit = odd
		}
		end, err := s.sized(limit)
		if err != nil || end > len(s.b) || end > s.lim.Message {
			return end, err
		}
		s.at = end
		s.left--
	}
	return s.at, nil
}

func (s *scan) pop() (end int, err error) {
	if !s.open {
		end := s.at + 8
		if len(s.b) < end || int64(binary.LittleEndian.Uint64(s.b[s.at:])) <= 0 {
			return end, nil
		}
		s.at, s.open = end, true
	}
	return s.sized(s.lim.Value)
}
