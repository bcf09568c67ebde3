package pickle

import (
	"bytes"
	"encoding/binary"

	"github.com/muster-pg/muster/tensor"
)

// torchTypes are the dtypes that torch also has. The older ones have a storage class.
var torchTypes = []torchType{
	{tensor.Bool, "bool", "BoolStorage"},
	{tensor.U8, "uint8", "ByteStorage"},
	{tensor.I8, "int8", "CharStorage"},
	{tensor.I16, "int16", "ShortStorage"},
	{tensor.I32, "int32", "IntStorage"},
	{tensor.I64, "int64", "LongStorage"},
	{tensor.F16, "float16", "HalfStorage"},
	{tensor.BF16, "bfloat16", "BFloat16Storage"},
	{tensor.F32, "float32", "FloatStorage"},
	{tensor.F64, "float64", "DoubleStorage"},
	{tensor.C64, "complex64", "ComplexFloatStorage"},
	{tensor.U16, "uint16", ""},
	{tensor.U32, "uint32", ""},
	{tensor.U64, "uint64", ""},
	{tensor.F8E4M3, "float8_e4m3fn", ""},
	{tensor.F8E5M2, "float8_e5m2", ""},
	{tensor.F8E4M3FNUZ, "float8_e4m3fnuz", ""},
	{tensor.F8E5M2FNUZ, "float8_e5m2fnuz", ""},
	{tensor.F8E8M0, "float8_e8m0fnu", ""},
}

type torchType struct {
	dtype         tensor.DType
	name, storage string
}

// storage is the bytes of a tensor, which alias the pickle.
type storage struct {
	dtype tensor.DType // Invalid: untyped
	b     []byte
}

const (
	// torchMagic is the beginning of what torch.save writes: its magic number, and version 1001 of
	// the format, a pickle each.
	torchMagic = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
	// torchHost follows it, and describes a host.
	torchHost = "\x80\x02}(X\x10\x00\x00\x00protocol_versionM\xe9\x03X\x0d\x00\x00\x00little_endian\x88X\x0a\x00\x00\x00type_sizes" +
		"}(X\x05\x00\x00\x00shortK\x02X\x03\x00\x00\x00intK\x04X\x04\x00\x00\x00longK\x04uu."
	zipMagic = "PK\x03\x04"
)

// callLoad reads a storage in the format of torch.save before 1.6, in which torch still pickles
// storages: five pickles, the number of elements, and their bytes.
func callLoad(m *machine, args []any) (any, error) {
	if len(args) != 1 {
		return nil, m.badCall("torch.storage._load_from_bytes", args)
	}
	b, ok := args[0].(*blob)
	if !ok {
		return nil, m.badCall("torch.storage._load_from_bytes", args)
	}
	if len(b.b) >= len(zipMagic) && string(b.b[:len(zipMagic)]) == zipMagic {
		return nil, m.refuse("torch.save", "a zip file in a pickle")
	}
	if err := m.spend(len(b.b)); err != nil { // it may be read repeatedly
		return nil, err
	}
	in := &machine{b: b.b, outer: m, ops: m.ops, room: m.room}
	return in.loadStorage()
}

func (m *machine) loadStorage() (any, error) {
	if err := m.preamble(); err != nil {
		return nil, err
	}
	count := 0
	m.persistent = func(id any) (v any, err error) {
		v, count, err = m.storageOf(id)
		return v, err
	}
	v, err := m.next()
	if err != nil {
		return nil, err
	}
	s, ok := v.(*storage)
	if !ok {
		return nil, m.malformed("torch.save has a %s, not a storage", kind(v))
	}
	m.persistent = nil
	if _, err := m.next(); err != nil { // the list of storages, which has one name
		return nil, err
	}
	n, err := m.uint(8)
	if err != nil {
		return nil, err
	}
	s.b = m.b[m.at:]
	if n != uint64(count) || len(s.b)/s.width() != count || len(s.b)%s.width() != 0 {
		return nil, m.malformed("a storage of %d elements in %d bytes, and it said %d", n, len(s.b), count)
	}
	return s, nil
}

// next runs the next of several pickles.
func (m *machine) next() (any, error) {
	m.memo, m.stack, m.marks = m.memo[:0], m.stack[:0], m.marks[:0]
	return m.run()
}

// preamble checks that the format is torch's, and little-endian.
func (m *machine) preamble() error {
	if !bytes.HasPrefix(m.b, []byte(torchMagic)) {
		return m.malformed("not the format of torch.save, in version 1001")
	}
	m.at = len(torchMagic)
	system, err := m.next()
	if err != nil {
		return err
	}
	if d, ok := system.(*dict); ok {
		if at, ok := d.index[littleEndianKey]; ok && d.items[at].Value == true {
			return nil
		}
	}
	return m.fail(ErrRefused, "a storage of a host that is not little-endian")
}

// littleEndianKey is the text of that key, in the form of keyer.
var littleEndianKey = "s" + string(rune(len("little_endian"))) + "little_endian"

// storageOf returns a storage without its bytes, and its number of elements, from its id:
// ("storage", class, name, device, elements, None).
func (m *machine) storageOf(id any) (*storage, int, error) {
	t, ok := id.(*tuple)
	if !ok || len(t.items) != 6 || t.items[0] != any("storage") {
		return nil, 0, m.fail(ErrRefused, "a persistent id that is no storage")
	}
	class, ok := t.items[1].(*global)
	if !ok {
		return nil, 0, m.malformed("a storage whose class is a %s", kind(t.items[1]))
	}
	if !class.dtype.Valid() && class.name != "torch.storage.UntypedStorage" {
		return nil, 0, m.refuse(class.name, "it is no storage")
	}
	n, ok := t.items[4].(int64)
	if !ok || n < 0 || n > int64(len(m.b)) {
		return nil, 0, m.malformed("a storage of %s elements in %d bytes", brief(t.items[4]), len(m.b))
	}
	if t.items[5] != nil {
		return nil, 0, m.fail(ErrRefused, "a view of a storage")
	}
	return &storage{dtype: class.dtype}, int(n), nil
}

// width returns the size of an element in bytes.
func (s *storage) width() int { return max(1, s.dtype.Bits()/8) }

// callTensor makes a tensor. Its arguments are storage, offset, shape, strides, whether it has a
// gradient, hooks, and metadata.
func callTensor(m *machine, args []any) (any, error) {
	if len(args) != 6 && len(args) != 7 {
		return nil, m.badCall("torch._utils._rebuild_tensor_v2", args)
	}
	s, ok := args[0].(*storage)
	if !ok || !s.dtype.Valid() {
		return nil, m.badCall("torch._utils._rebuild_tensor_v2", args)
	}
	return m.newTensor(s.dtype, s, args[1:6], args[6:])
}

// callTensorV3 makes a tensor whose dtype is an argument before the metadata; its storage has none.
func callTensorV3(m *machine, args []any) (any, error) {
	if len(args) != 7 && len(args) != 8 {
		return nil, m.badCall("torch._utils._rebuild_tensor_v3", args)
	}
	s, ok := args[0].(*storage)
	g, also := args[6].(*global)
	if !ok || !also || !g.dtype.Valid() {
		return nil, m.badCall("torch._utils._rebuild_tensor_v3", args)
	}
	return m.newTensor(g.dtype, s, args[1:6], args[7:])
}

func (m *machine) newTensor(dt tensor.DType, s *storage, args, metadata []any) (any, error) {
	for _, v := range metadata {
		if d, ok := v.(*dict); v != nil && (!ok || len(d.items) > 0) {
			return nil, m.refuse("torch.Tensor", "it has metadata: its numbers are not those of its storage")
		}
	}
	if hooks, ok := args[4].(*dict); !ok || len(hooks.items) > 0 {
		return nil, m.refuse("torch.Tensor", "it has hooks")
	}
	offset, ok := args[0].(int64)
	if !ok || offset < 0 || offset > int64(len(s.b)) {
		return nil, m.malformed("a tensor from element %s of %d bytes", brief(args[0]), len(s.b))
	}
	shape, err := m.shape(args[1])
	if err != nil {
		return nil, err
	}
	strides, err := m.shape(args[2])
	if err != nil {
		return nil, err
	}
	if len(strides) != len(shape) {
		return nil, m.malformed("shape %v with strides %v", shape, strides)
	}
	return m.gather(dt, s.b, layout{shape, strides, int(offset)})
}

// torchBytes returns t's storage in the format of torch.save.
func torchBytes(t *tensor.Tensor, class string, elements int) []byte {
	e := encoder{b: append(make([]byte, 0, len(torchMagic+torchHost)+len(t.Data)+128), torchMagic+torchHost...)}
	e.raw(0x80, 2, '(')
	e.oldText("storage")
	e.b = append(e.b, "ctorch\n"+class+"\n"...)
	e.oldText("0")
	e.oldText("cpu")
	e.int(int64(elements))
	e.raw('N', 't', 'Q', '.', 0x80, 2, ']')
	e.oldText("0")
	e.raw('a', '.')
	e.b = binary.LittleEndian.AppendUint64(e.b, uint64(elements))
	return append(e.b, t.Data...)
}
