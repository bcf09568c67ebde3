package pickle

import (
	"fmt"
	"math/big"
	"strconv"

	"github.com/muster-pg/muster/tensor"
)

// finish converts a value of the machine to the value that callers get.
func (m *machine) finish(v any) (any, error) {
	done, _, err := m.finishAt(v, 1)
	return done, err
}

// size is the size of a finished value, in units of about 64 bytes. A value that is in several
// places counts in each of them.
type size struct{ values, depth int }

func sizeOf(n int) size { return size{1 + n/64, 1} }

// finishAt finishes v, which is at the given depth.
func (m *machine) finishAt(v any, depth int) (any, size, error) {
	if depth > maxDepth {
		return nil, size{}, m.fail(ErrTooLarge, "values are more than %d deep", maxDepth)
	}
	switch v := v.(type) {
	case *list:
		return m.finishItems(&v.node, v.items, depth, func() any { return whole(v.items) })
	case *tuple:
		return m.finishItems(&v.node, v.items, depth, func() any { return Tuple(whole(v.items)) })
	case *dict:
		return m.finishDict(v, depth)
	case *object:
		return m.finishObject(v, depth)
	case *blob:
		done, err := m.finishBlob(v)
		return done, sizeOf(len(v.b)), err
	case nil, bool, int64, float64, NcclUniqueID:
		return v, sizeOf(0), nil
	case string:
		return v, sizeOf(len(v)), nil
	case *big.Int:
		return v, sizeOf(v.BitLen() / 8), nil
	case *tensor.Tensor:
		return v, sizeOf(len(v.Data)), nil
	case Array:
		return v, sizeOf(len(v.Data)), nil
	case *array:
		if v.done != nil {
			return *v.done, sizeOf(len(v.done.Data)), nil
		}
	case *global:
		if m.names != nil {
			return Class{v.name, v.dtype}, sizeOf(0), m.spend(blobSize)
		}
		return nil, size{}, m.refuse(v.name, "a class or a function is no plain value")
	}
	return nil, size{}, m.fail(ErrRefused, "a %s is no plain value", kind(v))
}

// whole returns items, and an empty slice instead of nil.
func whole(items []any) []any {
	if items == nil {
		return []any{}
	}
	return items
}

// finishItems finishes items in place, once, and makes a value of them.
func (m *machine) finishItems(n *node, items []any, depth int, value func() any) (any, size, error) {
	done, err := m.enter(n, depth)
	if done || err != nil {
		return n.done, n.size, err
	}
	for i := range items {
		if items[i], err = m.finishChild(n, items[i], depth); err != nil {
			return nil, size{}, err
		}
	}
	n.state, n.done = finished, value()
	return n.done, n.size, nil
}

func (m *machine) finishDict(d *dict, depth int) (any, size, error) {
	done, err := m.enter(&d.node, depth)
	if done || err != nil {
		return d.done, d.size, err
	}
	if d.items == nil {
		d.items = []Item{}
	}
	for i := range d.items {
		item := &d.items[i]
		if item.Key, err = m.finishChild(&d.node, item.Key, depth); err != nil {
			return nil, size{}, err
		}
		if item.Value, err = m.finishChild(&d.node, item.Value, depth); err != nil {
			return nil, size{}, err
		}
	}
	d.state, d.done = finished, Dict(d.items)
	return d.done, d.size, nil
}

// enter opens a node, and reports whether it is already finished.
func (m *machine) enter(n *node, depth int) (done bool, err error) {
	switch n.state {
	case finished:
		if depth+n.depth-1 > maxDepth {
			err = m.fail(ErrTooLarge, "values are more than %d deep", maxDepth)
		}
		return true, err
	case open:
		return false, m.fail(ErrRefused, "a value that holds itself")
	}
	n.state, n.size = open, sizeOf(0)
	return false, nil
}

// finishChild finishes v, a part of n at the given depth, and adds its size to n's.
func (m *machine) finishChild(n *node, v any, depth int) (any, error) {
	done, s, err := m.finishAt(v, depth+1)
	if err != nil {
		return nil, err
	}
	n.depth = max(n.depth, s.depth+1)
	n.values += s.values
	if n.values > maxShared+len(m.b) {
		return nil, m.fail(ErrTooLarge, "it has few values, but in so many places that there are more than %d", maxShared+len(m.b))
	}
	return done, nil
}

func (m *machine) finishBlob(v *blob) (any, error) {
	if v.done != nil {
		return v.done, nil
	}
	if err := m.spend(len(v.b)); err != nil {
		return nil, err
	}
	b := append([]byte{}, v.b...)
	v.done = b
	if v.mutable {
		v.done = ByteArray(b)
	}
	return v.done, nil
}

// brief formats v for an error: a small number as it is, and other values by their type, since
// formatting a large number takes longer than all the rest.
func brief(v any) string {
	switch v := v.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return kind(v)
}

// kind returns Python's name of v's type.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int, int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *blob:
		if v.mutable {
			return "bytearray"
		}
		return "bytes"
	case []byte:
		return "bytes"
	case ByteArray:
		return "bytearray"
	case *list, []any:
		return "list"
	case *tuple, Tuple:
		return "tuple"
	case *dict, Dict:
		return "dict"
	}
	return otherKind(v)
}

func otherKind(v any) string {
	switch v := v.(type) {
	case Array:
		return "numpy.ndarray"
	case *tensor.Tensor:
		return "torch.Tensor"
	case NcclUniqueID:
		return "ncclUniqueId"
	case *dtype:
		return "numpy.dtype"
	case *array:
		return "numpy.ndarray without its state"
	case *storage:
		return "storage of torch"
	case *global:
		return v.name
	case *object:
		return v.name
	}
	return fmt.Sprintf("%T", v)
}
