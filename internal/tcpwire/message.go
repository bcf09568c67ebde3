package tcpwire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"
)

// Request is one call of a client. The package comment has the fields of each operation; Parse
// leaves the others zero, and Append ignores them.
type Request struct {
	Op     Op
	Key    string
	Keys   []string
	Value  []byte   // COMPARE_SET: the new value
	Old    []byte   // COMPARE_SET: the expected value
	Values [][]byte // one for each of Keys
	N      int64    // a delta, a nonce, a world size
}

// Reply answers a Request.
type Reply struct {
	Keys   []string
	Value  []byte
	Values [][]byte
	N      int64 // a number, or a byte such as Ready
}

// AppendRequest appends r. If there is no such operation it returns an error, and b unchanged.
func AppendRequest(b []byte, r *Request) ([]byte, error) {
	if r.Op >= opEnd {
		return b, fmt.Errorf("%w: %v", ErrUnknownOp, r.Op)
	}
	if r.Op == OpMultiSet && len(r.Keys) != len(r.Values) {
		return b, fmt.Errorf("%w: %d keys and %d values (%v)", ErrMismatch, len(r.Keys), len(r.Values), r.Op)
	}
	b = append(b, byte(r.Op))
	for _, p := range r.Op.parts(&requests) {
		switch p {
		case pMagic:
			b = appendU32(b, Magic)
		case pKey:
			b = appendSized(b, r.Key)
		case pValue:
			b = appendSized(b, r.Value)
		case pOld:
			b = appendSized(b, r.Old)
		case pKeys:
			b = appendKeys(b, r.Keys)
		case pPairs:
			b = appendPairs(b, r.Keys, r.Values)
		case pWord:
			b = appendU32(b, uint32(r.N))
		default:
			b = appendU64(b, uint64(r.N))
		}
	}
	return b, nil
}

// AppendReply appends the reply to a request with operation op. It appends nothing if op has no
// reply.
func AppendReply(b []byte, op Op, r *Reply) []byte {
	for _, p := range op.parts(&replies) {
		switch p {
		case pValue:
			b = appendSized(b, r.Value)
		case pKeys:
			b = appendKeys(b, r.Keys)
		case pValues:
			for _, v := range r.Values {
				b = appendSized(b, v)
			}
		case pByte:
			b = append(b, byte(r.N))
		case pWord:
			b = appendU32(b, uint32(r.N))
		case pPop:
			b = appendPop(b, r)
		default:
			b = appendU64(b, uint64(r.N))
		}
	}
	return b
}

// AppendSize appends the front of the reply to a GET, which a value of n bytes follows.
func AppendSize(b []byte, n int) []byte { return appendU64(b, uint64(n)) }

func appendU32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func appendU64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

func appendSized[T string | []byte](b []byte, v T) []byte {
	return append(appendU64(b, uint64(len(v))), v...)
}

func appendKeys(b []byte, keys []string) []byte {
	b = appendU64(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendSized(b, k)
	}
	return b
}

func appendPairs(b []byte, keys []string, values [][]byte) []byte {
	b = appendU64(b, uint64(len(keys)))
	for i, k := range keys {
		b = appendSized(b, k)
		b = appendSized(b, values[i])
	}
	return b
}

func appendPop(b []byte, r *Reply) []byte {
	b = appendU64(b, uint64(r.N))
	if r.N > 0 {
		b = appendSized(b, r.Value)
	}
	return b
}

// Parse parses b, one whole request, into r, which aliases b. It overwrites r, and reuses the memory
// of its slices.
func (r *Request) Parse(b []byte) error {
	*r = Request{Keys: r.Keys[:0], Values: r.Values[:0]}
	if len(b) == 0 {
		return ErrTruncated
	}
	op, err := operation(b[0])
	if err != nil {
		return err
	}
	r.Op = op
	p := parser{b: b[1:]}
	for _, part := range op.parts(&requests) {
		switch part {
		case pMagic:
			if p.u32() != Magic {
				p.fail(ErrMagic)
			}
		case pKey:
			r.Key = p.string()
		case pValue:
			r.Value = p.bytes()
		case pOld:
			r.Old = p.bytes()
		case pKeys:
			r.Keys = p.keys(r.Keys)
		case pPairs:
			r.Keys, r.Values = p.pairs(r.Keys, r.Values)
		case pWord:
			r.N = int64(p.u32())
		default:
			r.N = int64(p.u64())
		}
	}
	return p.end(op)
}

// Parse parses b, one whole reply to a request with operation op and keys keys, into r, which
// aliases b. It overwrites r, and reuses the memory of its slices.
func (r *Reply) Parse(op Op, keys int, b []byte) error {
	*r = Reply{Keys: r.Keys[:0], Values: r.Values[:0]}
	p := parser{b: b}
	for _, part := range op.parts(&replies) {
		switch part {
		case pValue:
			r.Value = p.bytes()
		case pKeys:
			r.Keys = p.keys(r.Keys)
		case pValues:
			r.Values = p.values(r.Values, keys)
		case pByte:
			r.N = int64(p.u8())
		case pWord:
			r.N = int64(p.u32())
		case pPop:
			if r.N = int64(p.u64()); r.N > 0 {
				r.Value = p.bytes()
			}
		default:
			r.N = int64(p.u64())
		}
	}
	return p.end(op)
}

// parser takes parts from the front of b. After its first error all values are zero, so callers
// check the error once, at the end.
type parser struct {
	b   []byte
	err error
}

func (p *parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
	p.b = nil
}

// end returns the first error, or an error if bytes are left.
func (p *parser) end(op Op) error {
	if p.err == nil && len(p.b) > 0 {
		p.err = ErrTrailing
	}
	if p.err != nil {
		return fmt.Errorf("%w (%v)", p.err, op)
	}
	return nil
}

func (p *parser) take(n uint64) []byte {
	if n > uint64(len(p.b)) {
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

func (p *parser) bytes() []byte { return p.take(p.u64()) }

func (p *parser) string() string {
	v := p.bytes()
	return unsafe.String(unsafe.SliceData(v), len(v))
}

// count returns the number of items that follow, each of at least size bytes. A number that cannot
// fit is refused before memory is allocated for it.
func (p *parser) count(size uint64) int {
	n := p.u64()
	if n > uint64(len(p.b))/size {
		p.fail(ErrTruncated)
		return 0
	}
	return int(n)
}

func (p *parser) keys(dst []string) []string {
	n := p.count(8)
	dst = slices.Grow(dst, n)
	for range n {
		dst = append(dst, p.string())
	}
	return dst
}

func (p *parser) pairs(keys []string, values [][]byte) ([]string, [][]byte) {
	n := p.count(16)
	keys, values = slices.Grow(keys, n), slices.Grow(values, n)
	for range n {
		keys = append(keys, p.string())
		values = append(values, p.bytes())
	}
	return keys, values
}

func (p *parser) values(dst [][]byte, n int) [][]byte {
	for i := 0; i < n && p.err == nil; i++ {
		dst = append(dst, p.bytes())
	}
	return dst
}
