package pickle

import "unicode/utf8"

// badCall returns the error of a call with arguments that no pickler writes.
func (m *machine) badCall(name string, args []any) error {
	kinds := "nothing"
	for i, a := range args {
		if i == 0 {
			kinds = kind(a)
		} else {
			kinds += ", " + kind(a)
		}
	}
	return m.malformed("%s is called with %s", name, kinds)
}

// callSet makes a set of a list, as protocols up to 3 write it.
func callSet(m *machine, args []any) (any, error) { return m.newSet("set", args, false) }

func callFrozenSet(m *machine, args []any) (any, error) { return m.newSet("frozenset", args, true) }

func (m *machine) newSet(name string, args []any, frozen bool) (any, error) {
	s := &set{frozen: frozen}
	if len(args) == 0 {
		return s, nil
	}
	if len(args) == 1 {
		switch items := args[0].(type) {
		case *list:
			return s, m.fill(s, items.items)
		case *tuple:
			return s, m.fill(s, items.items)
		}
	}
	return nil, m.badCall(name, args)
}

// callBytes makes empty bytes, as protocols up to 2 write them.
func callBytes(m *machine, args []any) (any, error) {
	if len(args) != 0 {
		return nil, m.badCall("bytes", args)
	}
	return &blob{}, nil
}

// callByteArray makes a bytearray of bytes, as protocols up to 4 write it.
func callByteArray(m *machine, args []any) (any, error) {
	if len(args) == 0 {
		return &blob{mutable: true}, nil
	}
	if len(args) == 1 {
		if b, ok := args[0].(*blob); ok {
			return &blob{b: b.b, mutable: true}, nil
		}
	}
	return nil, m.badCall("bytearray", args)
}

// callEncode makes bytes of text in Latin-1, as protocols up to 2 write them.
func callEncode(m *machine, args []any) (any, error) {
	if len(args) != 2 || args[1] != any("latin1") {
		return nil, m.badCall("_codecs.encode", args)
	}
	text, ok := args[0].(string)
	if !ok {
		return nil, m.badCall("_codecs.encode", args)
	}
	if err := m.spend(len(text)); err != nil {
		return nil, err
	}
	b := make([]byte, 0, utf8.RuneCountInString(text))
	for _, r := range text {
		if r > 0xff {
			return nil, m.malformed("%q is not in Latin-1", r)
		}
		b = append(b, byte(r))
	}
	return &blob{b: b}, nil
}

func callOrderedDict(m *machine, args []any) (any, error) {
	if len(args) != 0 {
		return nil, m.badCall("collections.OrderedDict", args)
	}
	return &dict{}, nil
}

// callSize makes a shape of a tuple.
func callSize(m *machine, args []any) (any, error) {
	if len(args) == 1 {
		if t, ok := args[0].(*tuple); ok {
			return t, nil
		}
	}
	return nil, m.badCall("torch.Size", args)
}

// callStructure makes a structure of ctypes: the arguments are its class, and a tuple of its
// attributes and its bytes.
func callStructure(m *machine, args []any) (any, error) {
	if len(args) != 2 {
		return nil, m.badCall("_ctypes._unpickle", args)
	}
	g, ok := args[0].(*global)
	if !ok || g.name != nccl+".ncclUniqueId" {
		return nil, m.refuse(kind(args[0]), "a structure of ctypes")
	}
	if state, ok := args[1].(*tuple); ok && len(state.items) == 2 {
		attributes, ok := state.items[0].(*dict)
		b, also := state.items[1].(*blob)
		if ok && also && len(attributes.items) == 0 && len(b.b) == len(NcclUniqueID{}) {
			return NcclUniqueID(b.b), nil
		}
	}
	return nil, m.badCall("_ctypes._unpickle", args)
}
