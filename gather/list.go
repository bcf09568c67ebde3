package gather

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/tensor"
)

// A list is the items of an offer as bytes, in the order of their names. Numbers are uvarints, unless they say otherwise:
//
//	items: count, then for each:
//	name: length and bytes | dtype u8 | axes, and the length of each | where: 0 is streamed, else 1 + index in Refs | offset there | CRC-32C u32, little-endian
//
// What comes is checked as it is parsed.
const (
	maxAxes = 64 // more than any library has
	minItem = 1 + 1 + 1 + 1 + 1 + 4
)

var errList = errors.New("a malformed list of tensors: another version of muster?")

func encodeList(items []item) []byte {
	b := binary.AppendUvarint(nil, uint64(len(items)))
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
func parseList(b []byte) ([]item, error) {
	p := listParser{rest: b}
	n := p.number(len(b) / minItem)
	items := make([]item, n)
	for i := range items {
		p.item(&items[i])
	}
	if p.bad || len(p.rest) > 0 {
		return nil, errList
	}
	return items, nil
}

// listParser takes values from the front of rest. After the first that is not there or out of bounds, all are zero.
type listParser struct {
	rest []byte
	bad  bool
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
	case ref < 0 || ref >= len(o.Refs):
		return false
	}
	return off >= 0 && off <= o.Refs[ref].Len && int64(n) <= o.Refs[ref].Len-off
}
