package gather

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
)

// A list is what an offer has, and where, as bytes. Numbers are uvarints, unless they say otherwise; u32 and u64 are little-endian.
//
//	refs:  count, then for each: arena u64 | segment | offset | length
//	items: count, then for each, in the order of their names:
//	       name: length and bytes | dtype u8 | axes, and the length of each | where: 0 is streamed, else 1 + index of a ref | offset there | CRC-32C u32
//
// What comes is checked as it is parsed.
const (
	maxAxes = 64 // more than any library has
	minRef  = 8 + 1 + 1 + 1
	minItem = 1 + 1 + 1 + 1 + 1 + 4
)

var errList = errors.New("a malformed list of tensors: another version of muster?")

func encodeList(refs []shm.Ref, items []item) []byte {
	b := binary.AppendUvarint(nil, uint64(len(refs)))
	for _, r := range refs {
		b = binary.LittleEndian.AppendUint64(b, r.Arena)
		b = binary.AppendUvarint(b, uint64(r.Segment))
		b = binary.AppendUvarint(b, uint64(r.Offset))
		b = binary.AppendUvarint(b, uint64(r.Len))
	}
	b = binary.AppendUvarint(b, uint64(len(items)))
	for i := range items {
		it := &items[i]
		b = binary.AppendUvarint(b, uint64(len(it.Name)))
		b = append(b, it.Name...)
		b = append(b, byte(it.DType))
		b = binary.AppendUvarint(b, uint64(len(it.Shape)))
		for _, n := range it.Shape {
			b = binary.AppendUvarint(b, uint64(n))
		}
		b = binary.AppendUvarint(b, uint64(it.Ref+1))
		b = binary.AppendUvarint(b, uint64(it.Off))
		b = binary.LittleEndian.AppendUint32(b, it.Sum)
	}
	return b
}

// parseList does not keep b.
func parseList(b []byte) ([]shm.Ref, []item, error) {
	p := listParser{rest: b}
	refs := make([]shm.Ref, p.number(len(b)/minRef))
	for i := range refs {
		p.ref(&refs[i])
	}
	items := make([]item, p.number(len(p.rest)/minItem))
	for i := range items {
		p.item(&items[i])
	}
	if p.bad || len(p.rest) > 0 {
		return nil, nil, errList
	}
	return refs, items, nil
}

// listParser takes values from the front of rest. After the first that is not there or out of bounds, all are zero.
type listParser struct {
	rest []byte
	bad  bool
}

func (p *listParser) ref(r *shm.Ref) {
	if arena := p.take(8); arena != nil {
		r.Arena = binary.LittleEndian.Uint64(arena)
	}
	r.Segment = uint32(p.number(math.MaxUint32))
	r.Offset = int64(p.number(maxInt))
	r.Len = int64(p.number(maxInt))
}

func (p *listParser) item(it *item) {
	it.Name = string(p.take(p.number(len(p.rest))))
	if dtype := p.take(1); dtype != nil {
		it.DType = tensor.DType(dtype[0])
	}
	it.Shape = make([]int, p.number(maxAxes))
	for i := range it.Shape {
		it.Shape[i] = p.number(maxInt)
	}
	it.Ref = p.number(maxInt) - 1
	it.Off = int64(p.number(maxInt))
	if sum := p.take(4); sum != nil {
		it.Sum = binary.LittleEndian.Uint32(sum)
	}
}

const maxInt = int(^uint(0) >> 1)

// number is a uvarint of at most limit.
func (p *listParser) number(limit int) int {
	v, n := binary.Uvarint(p.rest)
	if p.bad || n <= 0 || v > uint64(limit) {
		p.bad = true
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

// take is the next n bytes; nil if they are not there.
func (p *listParser) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad = true
		return nil
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b
}

// checkItems refuses items that make no sense: they come from the network.
func (o *offer) checkItems() error {
	for i := range o.items {
		it := &o.items[i]
		n, err := tensor.Size(it.DType, it.Shape...)
		switch {
		case err != nil:
			return named(it.Name, err)
		case i > 0 && o.items[i-1].Name >= it.Name:
			return fmt.Errorf("tensor %q comes twice or out of order", it.Name)
		case !o.within(it.Ref, it.Off, n):
			return fmt.Errorf("tensor %q lies outside of the memory that is offered", it.Name)
		}
	}
	return nil
}

// within reports whether n bytes lie in what is offered.
func (o *offer) within(ref int, off int64, n int) bool {
	switch {
	case ref == streamed:
		return true
	case ref < 0 || ref >= len(o.refs):
		return false
	}
	return off >= 0 && off <= o.refs[ref].Len && int64(n) <= o.refs[ref].Len-off
}
