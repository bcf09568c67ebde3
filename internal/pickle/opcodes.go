package pickle

// opcodes are the opcodes of protocols 2 to 5, with the names of pickletools. run itself carries out STOP.
var opcodes = [256]opcode{
	opStop: {"STOP", nil},
	'(':    {"MARK", opMark},
	'0':    {"POP", opPop},
	'1':    {"POP_MARK", func(m *machine) error { _, err := m.popMark(); return err }},
	'2':    {"DUP", opDup},

	'N':  {"NONE", func(m *machine) error { return m.push(nil, 0) }},
	0x88: {"NEWTRUE", func(m *machine) error { return m.push(true, 0) }},
	0x89: {"NEWFALSE", func(m *machine) error { return m.push(false, 0) }},
	'J':  {"BININT", opBinInt},
	'K':  {"BININT1", func(m *machine) error { return m.opUint(1) }},
	'M':  {"BININT2", func(m *machine) error { return m.opUint(2) }},
	0x8a: {"LONG1", func(m *machine) error { return m.opLong(1) }},
	0x8b: {"LONG4", func(m *machine) error { return m.opLong(4) }},
	'G':  {"BINFLOAT", opBinFloat},

	'X':  {"BINUNICODE", func(m *machine) error { return m.opText(4) }},
	0x8c: {"SHORT_BINUNICODE", func(m *machine) error { return m.opText(1) }},
	0x8d: {"BINUNICODE8", func(m *machine) error { return m.opText(8) }},
	'B':  {"BINBYTES", func(m *machine) error { return m.opBytes(4, false) }},
	'C':  {"SHORT_BINBYTES", func(m *machine) error { return m.opBytes(1, false) }},
	0x8e: {"BINBYTES8", func(m *machine) error { return m.opBytes(8, false) }},
	0x96: {"BYTEARRAY8", func(m *machine) error { return m.opBytes(8, true) }},

	')':  {"EMPTY_TUPLE", func(m *machine) error { return m.pushTuple(nil) }},
	't':  {"TUPLE", opTuple},
	0x85: {"TUPLE1", func(m *machine) error { return m.opTupleN(1) }},
	0x86: {"TUPLE2", func(m *machine) error { return m.opTupleN(2) }},
	0x87: {"TUPLE3", func(m *machine) error { return m.opTupleN(3) }},
	']':  {"EMPTY_LIST", func(m *machine) error { return m.push(&list{}, listSize) }},
	'a':  {"APPEND", opAppend},
	'e':  {"APPENDS", opAppends},
	'}':  {"EMPTY_DICT", func(m *machine) error { return m.push(&dict{}, dictSize) }},
	's':  {"SETITEM", opSetItem},
	'u':  {"SETITEMS", opSetItems},
	0x8f: {"EMPTY_SET", func(m *machine) error { return m.refuse("builtins.set", "a set is no plain value") }},
	0x91: {"FROZENSET", func(m *machine) error { return m.refuse("builtins.frozenset", "a set is no plain value") }},

	'q':  {"BINPUT", func(m *machine) error { return m.opPutN(1) }},
	'r':  {"LONG_BINPUT", func(m *machine) error { return m.opPutN(4) }},
	0x94: {"MEMOIZE", func(m *machine) error { return m.put(uint64(len(m.memo))) }},
	'h':  {"BINGET", func(m *machine) error { return m.opGetN(1) }},
	'j':  {"LONG_BINGET", func(m *machine) error { return m.opGetN(4) }},

	'c':  {"GLOBAL", opGlobal},
	0x93: {"STACK_GLOBAL", opStackGlobal},
	'R':  {"REDUCE", opReduce},
	'b':  {"BUILD", opBuild},
	0x81: {"NEWOBJ", opNewObj},
	0x92: {"NEWOBJ_EX", opNewObj},
	'Q':  {"BINPERSID", opBinPersID},
	0x82: {"EXT1", func(m *machine) error { return m.opExt(1) }},
	0x83: {"EXT2", func(m *machine) error { return m.opExt(2) }},
	0x84: {"EXT4", func(m *machine) error { return m.opExt(4) }},
	0x97: {"NEXT_BUFFER", opBuffer},
	0x98: {"READONLY_BUFFER", opBuffer},

	0x80: {"PROTO", opProto},
	0x95: {"FRAME", opFrame},
}

func opMark(m *machine) error {
	m.marks = append(m.marks, len(m.stack))
	return m.spend(word)
}

// opPop removes the last value, or the mark if that is last.
func opPop(m *machine) error {
	if n := len(m.marks); n > 0 && m.floor() == len(m.stack) {
		m.marks = m.marks[:n-1]
		return nil
	}
	_, err := m.pop()
	return err
}

func opDup(m *machine) error {
	v, err := m.top()
	if err != nil {
		return err
	}
	return m.push(v, 0)
}

func opProto(m *machine) error {
	version, err := m.u8()
	if err == nil && version > 5 {
		err = m.malformed("protocol %d is newer than 5", version)
	}
	return err
}

// opFrame reads the length of a frame, which is not needed: the whole pickle is in memory.
func opFrame(m *machine) error {
	n, err := m.uint(8)
	if err == nil && n > uint64(len(m.b)-m.at) {
		err = m.malformed("a frame of %d bytes, and %d are there", n, len(m.b)-m.at)
	}
	return err
}

func (m *machine) opPutN(size int) error {
	i, err := m.uint(size)
	if err != nil {
		return err
	}
	return m.put(i)
}

func (m *machine) opGetN(size int) error {
	i, err := m.uint(size)
	if err != nil {
		return err
	}
	return m.get(i)
}
