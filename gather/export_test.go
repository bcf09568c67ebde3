package gather

import (
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// Relist parses a list of tensors, and says what it would be written as again.
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

// List is what a rank says of tensors that are streamed.
func List(names []string, dt tensor.DType, shape ...int) []byte {
	var items []item
	for _, name := range names {
		items = append(items, item{Name: name, DType: dt, Shape: shape, Ref: streamed, Sum: 7})
	}
	return encodeList([]shm.Ref{{Arena: 1 << 60, Segment: 5, Offset: 4096, Len: 64}}, items)
}

// Reoffer decodes an offer, and says what it would be encoded as again.
func Reoffer(b []byte) ([]byte, error) {
	var o offer
	if err := o.decode(b); err != nil {
		return nil, err
	}
	return o.encode(), nil
}

// Offers are some of every kind.
func Offers() (encoded [][]byte) {
	for _, o := range []offer{
		{},
		{Fault: &fault{Code: wire.CodeFailed, By: -1, Reason: "no memory"}},
		{Fault: &fault{Code: wire.CodeLost, By: -1, Reason: "no goodbye", Lost: []int{3, 300}}},
		{Absent: true, Ready: true, Axis: -1},
		{Ready: true, Config: true, Summed: true, Axis: 3, List: List([]string{"w"}, tensor.F32, 2), Export: 9},
		{Far: &spot{Len: 1 << 20}},
		{Far: &spot{Len: 5, Ref: &shm.Ref{Arena: 1 << 63, Segment: 7, Offset: 64, Len: 5}}},
		{Version: &nfsws.Version{Sequence: 42, ID: 1 << 31, Sum: 1 << 63}},
	} {
		encoded = append(encoded, o.encode())
	}
	return encoded
}
