package pickle

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

func callOrderedDict(m *machine, args []any) (any, error) {
	if len(args) != 0 {
		return nil, m.badCall("collections.OrderedDict", args)
	}
	return &dict{}, nil
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
