package pickle

import (
	"strings"

	"github.com/muster-pg/muster/tensor"
)

// global is a name that a pickle may import, and the Go function that makes its value.
type global struct {
	name  string
	call  func(m *machine, args []any) (any, error) // nil: the name cannot be called
	dtype tensor.DType                              // of a dtype or a storage of torch
	// object is set if it makes an Object.
	object bool
}

const nccl = "vllm.distributed.device_communicators.pynccl_wrapper"

// globals has all names that are accepted, by module and name.
var globals = tableOf(map[string]*global{
	"builtins bytearray":      {call: callByteArray},
	"collections OrderedDict": {call: callOrderedDict},

	"numpy ndarray":                       {call: callArray},
	"numpy dtype":                         {call: callDType},
	"numpy.core.multiarray _reconstruct":  {call: callReconstruct},
	"numpy._core.multiarray _reconstruct": {call: callReconstruct},
	"numpy.core.numeric _frombuffer":      {call: callFromBuffer},
	"numpy._core.numeric _frombuffer":     {call: callFromBuffer},

	"torch.storage _load_from_bytes":  {call: callLoad},
	"torch.storage UntypedStorage":    {},
	"torch._utils _rebuild_tensor_v2": {call: callTensor},
	"torch._utils _rebuild_tensor_v3": {call: callTensorV3},

	"_ctypes _unpickle":    {call: callStructure},
	nccl + " ncclUniqueId": {},
})

// tableOf adds torch's dtypes and storages to the table, and sets the names.
func tableOf(table map[string]*global) map[string]*global {
	for _, t := range torchTypes {
		table["torch "+t.name] = &global{dtype: t.dtype}
		if t.storage != "" {
			table["torch "+t.storage] = &global{dtype: t.dtype}
		}
	}
	for key, g := range table {
		g.name = strings.Replace(key, " ", ".", 1)
	}
	return table
}

// find returns the global with that name, or the error that refuses it.
func (m *machine) find(module, name string) (*global, error) {
	full := module + "." + name
	if m.names[full] {
		return &global{name: full, object: true}, nil
	}
	if g, ok := globals[module+" "+name]; ok {
		return g, nil
	}
	return nil, m.refuse(full, "it would be imported")
}

func opGlobal(m *machine) error {
	module, err := m.line()
	if err != nil {
		return err
	}
	name, err := m.line()
	if err != nil {
		return err
	}
	g, err := m.find(module, name)
	if err != nil {
		return err
	}
	return m.push(g, 0)
}

func opStackGlobal(m *machine) error {
	words, err := m.popN(2)
	if err != nil {
		return err
	}
	module, ok := words[0].(string)
	name, also := words[1].(string)
	if !ok || !also {
		return m.malformed("the name of a global is a %s and a %s", kind(words[0]), kind(words[1]))
	}
	g, err := m.find(module, name)
	if err != nil {
		return err
	}
	return m.push(g, 0)
}

// opReduce makes the value that a call would return.
func opReduce(m *machine) error {
	words, err := m.popN(2)
	if err != nil {
		return err
	}
	g, ok := words[0].(*global)
	args, also := words[1].(*tuple)
	switch {
	case !ok:
		return m.fail(ErrRefused, "a %s would be called", kind(words[0]))
	case g.object:
		return m.pushObject(g, words[1])
	case g.call == nil:
		return m.refuse(g.name, "it would be called")
	case !also:
		return m.malformed("%s is called with a %s", g.name, kind(words[1]))
	}
	v, err := g.call(m, args.items)
	if err != nil {
		return err
	}
	return m.push(v, listSize)
}

// opBuild sets the state of an object: dtypes and arrays of numpy have one.
func opBuild(m *machine) error {
	words, err := m.popN(1)
	if err != nil {
		return err
	}
	state := words[0]
	v, err := m.pop()
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case *dtype:
		err = m.buildDType(v, state)
	case *array:
		err = m.buildArray(v, state)
	case *object:
		err = m.buildObject(v, state)
	case *global:
		return m.refuse(v.name, "its state would be set")
	default:
		return m.fail(ErrRefused, "the state of a %s would be set", kind(v))
	}
	if err != nil {
		return err
	}
	return m.push(v, 0)
}

// opNewObj expects the class below its arguments, which are one value or two.
func opNewObj(m *machine) error {
	n := 2
	if m.b[m.op] == 0x92 {
		n = 3
	}
	words, err := m.popN(n)
	if err != nil {
		return err
	}
	switch g, ok := words[0].(*global); {
	case ok && g.object && n == 2:
		return m.pushObject(g, words[1])
	case ok:
		return m.refuse(g.name, "an object of it would be made")
	}
	return m.fail(ErrRefused, "an object of a %s would be made", kind(words[0]))
}

func opBinPersID(m *machine) error {
	id, err := m.pop()
	if err != nil {
		return err
	}
	if m.persistent == nil {
		return m.fail(ErrRefused, "a persistent id, whose value is elsewhere")
	}
	v, err := m.persistent(id)
	if err != nil {
		return err
	}
	return m.push(v, blobSize)
}

func (m *machine) opExt(size int) error {
	code, err := m.uint(size)
	if err != nil {
		return err
	}
	return m.fail(ErrRefused, "extension code %d, whose class is registered elsewhere", code)
}

func opBuffer(m *machine) error {
	return m.fail(ErrRefused, "a buffer that travels apart")
}
