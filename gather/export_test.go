package gather

import (
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
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
