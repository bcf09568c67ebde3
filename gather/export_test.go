package gather

import (
	"bytes"
	"context"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// Relist parses a list of tensors, and encodes it again.
func Relist(b []byte) (again []byte, names []string, err error) {
	refs, items, err := parseList(b)
	if err != nil {
		return nil, nil, err
	}
	o := offer{refs: refs, items: items}
	if err := o.checkItems(); err != nil {
		return nil, nil, err
	}
	for _, it := range items {
		names = append(names, it.Name)
	}
	return encodeList(refs, items), names, nil
}

// List returns the encoding of a list of tensors that are streamed.
func List(names []string, dt tensor.DType, shape ...int) []byte {
	var items []item
	for _, name := range names {
		items = append(items, item{Name: name, DType: dt, Shape: shape, Ref: streamed})
	}
	return encodeList([]shm.Ref{{Arena: 1 << 60, Segment: 5, Offset: 4096, Len: 64}}, items)
}

// Reoffer decodes an offer, and encodes it again.
func Reoffer(b []byte) ([]byte, error) {
	var o offer
	if err := o.decode(b); err != nil {
		return nil, err
	}
	return o.encode(), nil
}

// Offers returns encoded offers of every kind.
func Offers() (encoded [][]byte) {
	for _, o := range []offer{
		{},
		{Fault: &fault{Code: wire.CodeFailed, By: -1, Reason: "no memory"}},
		{Fault: &fault{Code: wire.CodeLost, By: -1, Reason: "no goodbye", Lost: []int{3, 300}}},
		{Absent: true, Ready: true, Axis: -1},
		{Ready: true, Config: true, Axis: 3, List: List([]string{"w"}, tensor.F32, 2), Export: 9},
		{Long: &listLocation{Len: 1 << 20}},
		{Long: &listLocation{Len: 5, Ref: &shm.Ref{Arena: 1 << 63, Segment: 7, Offset: 64, Len: 5}}},
		{Version: &nfsws.Version{Sequence: 42, ID: 1 << 31, Sum: 1 << 63}},
	} {
		encoded = append(encoded, o.encode())
	}
	return encoded
}

// Impossible returns invalid offers, for the nth call of a verb.
func Impossible(verb uint8, call uint64) map[string][]byte {
	u8 := func(name string, shape ...int) item {
		return item{Name: name, DType: tensor.U8, Shape: shape, Ref: streamed}
	}
	many := make([]item, 17) // whose sizes add up to 64 if they overflow
	for i := range many {
		many[i] = u8(string(rune('a'+i)), 1<<60)
	}
	many[16] = u8("z", 64)
	of := func(o offer) []byte {
		o.Verb, o.Call = verb, call
		return o.encode()
	}
	version := &nfsws.Version{Sequence: 1 << 20, ID: 1, Sum: 1}
	return map[string][]byte{
		"nothing":               nil,
		"no msgpack":            {0xc1},
		"deep":                  bytes.Repeat([]byte{0x91}, 5000),
		"the start of a list":   []byte("\x81\xa4List\xc4\x03abc"),
		"a large export":        []byte("\x81\xa6Export\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
		"a version, and a list": of(offer{Version: version, List: encodeList(nil, []item{u8("tensor", 8)})}),
		"a version alone":       of(offer{Version: version}),
		"sizes that overflow":   of(offer{Export: 1, List: encodeList(nil, many)}),
		"more than there is":    of(offer{Export: 1, List: encodeList(nil, []item{u8("tensor", 1<<46)})}),
		"no tensor":             of(offer{Ready: true, List: encodeList(nil, nil), Config: true}),
		"ready without a list":  of(offer{Ready: true}),
		"neither here nor far":  of(offer{}),
		"another config":        of(offer{Ready: true, Config: true, List: encodeList(nil, []item{u8(unnamed, 2, 2)})}),
		"memory of no rank":     of(offer{Ready: true, List: encodeList([]shm.Ref{{Arena: 1, Segment: 1, Len: 8}}, []item{{Name: "tensor", DType: tensor.U8, Shape: []int{8}}})}),
	}
}

// Grab acts as a first rank that asks for the offer of list b over the stream of list a, and reads
// nothing from it.
func Grab(ctx context.Context, ga *Gatherer, a, b string, from int) error {
	ca, cb := ga.subgroups[a], ga.subgroups[b]
	cb.calls++
	mine := offer{Absent: true, Ready: true, Call: cb.calls}
	cb.records.Skip(2 * cb.turns)
	cb.turns++
	encoded, err := pgroup.AllGather(ctx, cb.records, mine.encode())
	if err != nil {
		return err
	}
	offers, err := (&verb{subgroup: cb}).openOffers(encoded)
	if err != nil {
		return err
	}
	var requests []byte
	for range 64 {
		requests = appendPiece(requests, piece{export: offers[1].Export, n: pieceLen})
	}
	_, err = ga.in.streams[senderID{ca.group.Generation(), from}].conn.Write(requests)
	return err
}
