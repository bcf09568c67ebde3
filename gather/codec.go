package gather

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// The codec of offers and lists. It is written by hand because it is on the path of every gather: a
// msgpack codec by reflection takes 14 µs for one offer with one tensor, where a whole gather of
// two ranks takes 22 µs, and 5 ms for a list of 1,000 tensors.
//
// Numbers are uvarints, unless stated otherwise; u64 is little-endian. Text and bytes are
// preceded by their length.
//
//	offer: flags u8 | verb u8 | call | axis varint | fault | list, if that is here
//	       length of a long list, and its ref, if it has one | memory | stream | export | version
//	fault: 0, or code | reason | count of lost ranks, and they
//	list:  count of refs, and they | count of items, and for each, in the order of their names:
//	       name | dtype u8 | count of axes, and the length of each |
//	       where: 0 is streamed, else 1 + index of a ref | offset there
//	ref:   arena u64 | segment | offset | length
//	version: sequence | id | sum u64
const (
	flagAbsent byte = 1 << iota
	flagReady
	flagConfig
	flagList
	flagLong
	flagLongRef
	flagVersion
)

const (
	maxAxes = 64 // more than any library has
	minRef  = 8 + 1 + 1 + 1
	minItem = 1 + 1 + 1 + 1 + 1
	maxInt  = int(^uint(0) >> 1)
)

var errMalformed = errors.New("a malformed offer: another version of muster?")

func (o *offer) flags() (f byte) {
	for flag, on := range map[byte]bool{
		flagAbsent: o.Absent, flagReady: o.Ready, flagConfig: o.Config, flagList: o.List != nil,
		flagLong: o.Long != nil, flagLongRef: o.Long != nil && o.Long.Ref != nil, flagVersion: o.Version != nil,
	} {
		if on {
			f |= flag
		}
	}
	return f
}

func (o *offer) encode() []byte {
	b := append(make([]byte, 0, 64+len(o.List)), o.flags(), o.Verb)
	b = binary.AppendUvarint(b, o.Call)
	b = binary.AppendVarint(b, int64(o.Axis))
	b = appendFault(b, o.Fault)
	if o.List != nil {
		b = appendText(b, o.List)
	}
	if o.Long != nil {
		b = binary.AppendUvarint(b, uint64(o.Long.Len))
		if o.Long.Ref != nil {
			b = appendRef(b, *o.Long.Ref)
		}
	}
	b = binary.AppendUvarint(b, o.Memory)
	b = binary.AppendUvarint(b, o.Stream)
	b = binary.AppendUvarint(b, o.Export)
	if o.Version != nil {
		b = binary.AppendUvarint(b, o.Version.Sequence)
		b = binary.AppendUvarint(b, uint64(o.Version.ID))
		b = binary.LittleEndian.AppendUint64(b, o.Version.Sum)
	}
	return b
}

// decode parses b, and keeps List as a part of it.
func (o *offer) decode(b []byte) error {
	p := parser{rest: b}
	f := p.byte()
	o.Verb = p.byte()
	o.Absent, o.Ready, o.Config = f&flagAbsent != 0, f&flagReady != 0, f&flagConfig != 0
	o.Call = uint64(p.number(maxInt))
	o.Axis = p.signed()
	o.Fault = p.fault()
	if f&flagList != 0 {
		o.List = p.text()
	}
	if f&flagLong != 0 {
		o.Long = &listLocation{Len: p.number(maxInt)}
		if f&flagLongRef != 0 {
			r := p.ref()
			o.Long.Ref = &r
		}
	}
	o.Memory = uint64(p.number(maxInt))
	o.Stream = uint64(p.number(maxInt))
	o.Export = uint64(p.number(maxInt))
	if f&flagVersion != 0 {
		o.Version = &nfsws.Version{Sequence: uint64(p.number(maxInt)), ID: uint32(p.number(math.MaxUint32)), Sum: p.uint64()}
	}
	return p.end()
}

func encodeList(refs []shm.Ref, items []item) []byte {
	b := binary.AppendUvarint(nil, uint64(len(refs)))
	for _, r := range refs {
		b = appendRef(b, r)
	}
	b = binary.AppendUvarint(b, uint64(len(items)))
	for i := range items {
		it := &items[i]
		b = appendText(b, it.Name)
		b = append(b, byte(it.DType))
		b = binary.AppendUvarint(b, uint64(len(it.Shape)))
		for _, n := range it.Shape {
			b = binary.AppendUvarint(b, uint64(n))
		}
		b = binary.AppendUvarint(b, uint64(it.Ref+1))
		b = binary.AppendUvarint(b, uint64(it.Off))
	}
	return b
}

// parseList parses a list. The result does not alias b.
func parseList(b []byte) ([]shm.Ref, []item, error) {
	p := parser{rest: b}
	refs := make([]shm.Ref, p.number(len(b)/minRef))
	for i := range refs {
		refs[i] = p.ref()
	}
	items := make([]item, p.number(len(p.rest)/minItem))
	for i := range items {
		items[i] = p.item()
	}
	return refs, items, p.end()
}

func appendText[T string | []byte](b []byte, text T) []byte {
	b = binary.AppendUvarint(b, uint64(len(text)))
	return append(b, text...)
}

func appendFault(b []byte, f *fault) []byte {
	if f == nil {
		return append(b, 0)
	}
	b = binary.AppendUvarint(b, uint64(f.Code))
	b = appendText(b, f.Reason)
	b = binary.AppendUvarint(b, uint64(len(f.Lost)))
	for _, r := range f.Lost {
		b = binary.AppendUvarint(b, uint64(r))
	}
	return b
}

func (p *parser) fault() *fault {
	code := wire.Code(p.number(math.MaxUint16))
	if code == 0 {
		return nil
	}
	f := &fault{Code: code, By: -1, Reason: string(p.text())}
	for n := p.number(len(p.rest)); n > 0; n-- {
		f.Lost = append(f.Lost, p.number(maxInt))
	}
	return f
}

func appendRef(b []byte, r shm.Ref) []byte {
	b = binary.LittleEndian.AppendUint64(b, r.Arena)
	b = binary.AppendUvarint(b, uint64(r.Segment))
	b = binary.AppendUvarint(b, uint64(r.Offset))
	return binary.AppendUvarint(b, uint64(r.Len))
}

// parser takes values from the front of rest. After the first value that is missing or out of
// bounds, all are zero, and end returns an error.
type parser struct {
	rest []byte
	bad  bool
}

func (p *parser) end() error {
	if p.bad || len(p.rest) > 0 {
		return errMalformed
	}
	return nil
}

func (p *parser) item() (it item) {
	it.Name = string(p.text())
	it.DType = tensor.DType(p.byte())
	it.Shape = make([]int, p.number(maxAxes))
	for i := range it.Shape {
		it.Shape[i] = p.number(maxInt)
	}
	it.Ref = p.number(maxInt) - 1
	it.Off = int64(p.number(maxInt))
	return it
}

func (p *parser) ref() shm.Ref {
	return shm.Ref{Arena: p.uint64(), Segment: uint32(p.number(math.MaxUint32)), Offset: int64(p.number(maxInt)), Len: int64(p.number(maxInt))}
}

// number takes a uvarint of at most limit.
func (p *parser) number(limit int) int {
	v, n := binary.Uvarint(p.rest)
	if p.bad || n <= 0 || v > uint64(limit) {
		p.bad = true
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

func (p *parser) signed() int {
	v, n := binary.Varint(p.rest)
	if p.bad || n <= 0 || int64(int(v)) != v {
		p.bad = true
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

func (p *parser) text() []byte { return p.take(p.number(len(p.rest))) }

func (p *parser) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (p *parser) uint64() uint64 {
	if b := p.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// take returns the next n bytes, or nil if there are fewer.
func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad = true
		return nil
	}
	b := p.rest[:n:n]
	p.rest = p.rest[n:]
	return b
}
