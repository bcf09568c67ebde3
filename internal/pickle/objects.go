package pickle

import "slices"

// Mutable values, and values that are copied only when their use is known.
type (
	blob struct {
		b       []byte // aliases the pickle
		mutable bool
		done    any
	}
	list struct {
		items []any
		node
	}
	tuple struct {
		items []any
		node
	}
	dict struct {
		items []Item
		index map[string]int
		node
	}
)

// The approximate sizes of objects without their items.
const (
	blobSize = 48
	listSize = 64
	dictSize = 112
	// objectSize is that of an object with that of its Object.
	objectSize = 192
	keySize    = 80 // of an entry in an index
)

// node is the state of an object in finish.
type node struct {
	state state
	done  any
	size
}

type state int8

const (
	open state = iota + 1
	finished
)

func (m *machine) pushTuple(items []any) error {
	if err := m.spend(word * len(items)); err != nil {
		return err
	}
	return m.push(&tuple{items: slices.Clone(items)}, listSize)
}

func opTuple(m *machine) error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.pushTuple(items)
}

func (m *machine) opTupleN(n int) error {
	items, err := m.popN(n)
	if err != nil {
		return err
	}
	return m.pushTuple(items)
}

// extend appends items to a list. It charges twice their size, since the slice may grow.
func (m *machine) extend(v any, items []any) error {
	l, ok := v.(*list)
	if !ok {
		return m.refuseInto(v, "items")
	}
	if err := m.spend(2 * word * len(items)); err != nil {
		return err
	}
	l.items = append(l.items, items...)
	return nil
}

// refuseInto returns the error of an opcode that changes a value of the wrong kind.
func (m *machine) refuseInto(v any, what string) error {
	if g, ok := v.(*global); ok {
		return m.refuse(g.name, "a class cannot be given %s", what)
	}
	return m.malformed("a %s cannot be given %s", kind(v), what)
}

// intoTop puts items into the value on top of the stack.
func (m *machine) intoTop(put func(v any, items []any) error, items []any, err error) error {
	if err != nil {
		return err
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	return put(v, items)
}

func opAppend(m *machine) error {
	items, err := m.popN(1)
	return m.intoTop(m.extend, items, err)
}

func opAppends(m *machine) error {
	items, err := m.popMark()
	return m.intoTop(m.extend, items, err)
}

func opSetItem(m *machine) error {
	items, err := m.popN(2)
	return m.intoTop(m.setItems, items, err)
}

func opSetItems(m *machine) error {
	items, err := m.popMark()
	return m.intoTop(m.setItems, items, err)
}

// setItems puts alternating keys and values into a dict.
func (m *machine) setItems(v any, items []any) error {
	d, ok := v.(*dict)
	if !ok {
		return m.refuseInto(v, "keys")
	}
	if len(items)%2 != 0 {
		return m.malformed("a key without a value")
	}
	for i := 0; i < len(items); i += 2 {
		text, err := m.key(items[i])
		if err != nil {
			return err
		}
		if at, ok := d.index[text]; ok {
			d.items[at].Value = items[i+1]
			continue
		}
		if err := m.spend(keySize + 4*word); err != nil {
			return err
		}
		if d.index == nil {
			d.index = map[string]int{}
		}
		d.index[text] = len(d.items)
		d.items = append(d.items, Item{items[i], items[i+1]})
	}
	return nil
}
