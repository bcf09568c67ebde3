package gather

import "github.com/muster-pg/muster/tensor"

// Relist parses a list of tensors, and says what it would be written as again.
func Relist(b []byte) (again []byte, names []string, err error) {
	items, err := parseList(b)
	if err != nil {
		return nil, nil, err
	}
	o := offer{items: items}
	if err := o.checkItems(); err != nil {
		return nil, nil, err
	}
	for _, it := range items {
		names = append(names, it.Name)
	}
	return encodeList(items), names, nil
}

// List is what a rank says of tensors that are streamed.
func List(names []string, dt tensor.DType, shape ...int) []byte {
	var items []item
	for _, name := range names {
		items = append(items, item{Name: name, DType: dt, Shape: shape, Ref: streamed, Sum: 7})
	}
	return encodeList(items)
}
