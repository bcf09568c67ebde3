package pickle

import (
	"strings"

	"github.com/muster-pg/muster/tensor"
)

// numpyTypes are numpy's dtypes, by their names without the byte order.
var numpyTypes = map[string]tensor.DType{
	"b1": tensor.Bool, "i1": tensor.I8, "i2": tensor.I16, "i4": tensor.I32, "i8": tensor.I64, "u1": tensor.U8, "u2": tensor.U16,
	"u4": tensor.U32, "u8": tensor.U64, "f2": tensor.F16, "f4": tensor.F32, "f8": tensor.F64, "c8": tensor.C64,
}

// numpyName returns numpy's name for a dtype, with the byte order, or "" if it has none.
func numpyName(dt tensor.DType) string {
	for name, t := range numpyTypes {
		switch {
		case t != dt:
		case dt.Bits() == 8:
			return "|" + name
		default:
			return "<" + name
		}
	}
	return ""
}

// dtype is a numpy.dtype.
type dtype struct {
	tensor.DType
	built bool
}

// array is a numpy.ndarray whose elements a later BUILD sets.
type array struct {
	done *Array
}

// newDType returns the dtype of a name such as "f4" or "<f4".
func (m *machine) newDType(name string) (*dtype, error) {
	bare := strings.TrimLeft(name, "<>|=")
	dt, ok := numpyTypes[bare]
	if !ok || len(name)-len(bare) > 1 || strings.HasPrefix(name, ">") {
		return nil, m.refuse("numpy.dtype("+name+")", "its elements are no plain little-endian numbers")
	}
	return &dtype{DType: dt}, nil
}

// callDType makes a dtype of a name; the other arguments are whether to align and to copy.
func callDType(m *machine, args []any) (any, error) {
	if len(args) != 1 && len(args) != 3 {
		return nil, m.badCall("numpy.dtype", args)
	}
	name, ok := args[0].(string)
	if !ok {
		return nil, m.badCall("numpy.dtype", args)
	}
	return m.newDType(name)
}

// buildDType checks the byte order. The rest of the state belongs to dtypes that are refused, or to
// their metadata.
func (m *machine) buildDType(dt *dtype, state any) error {
	t, ok := state.(*tuple)
	if !ok || len(t.items) < 5 || dt.built {
		return m.malformed("the state of a numpy.dtype is a %s", kind(state))
	}
	order, ok := t.items[1].(string)
	if !ok || !strings.Contains("<>|=", order) || len(order) != 1 {
		return m.malformed("a numpy.dtype with the order of bytes %s", brief(t.items[1]))
	}
	for _, item := range t.items[2:5] {
		if item != nil {
			return m.refuse("numpy.dtype", "its elements have parts")
		}
	}
	if order == ">" {
		return m.refuse("numpy.dtype", "its elements are big-endian")
	}
	dt.built = true
	return nil
}

// dtypeOf returns the dtype that an argument names.
func (m *machine) dtypeOf(v any) (*dtype, error) {
	switch v := v.(type) {
	case *dtype:
		return v, nil
	case string:
		return m.newDType(v)
	}
	return nil, m.malformed("a numpy.dtype that is a %s", kind(v))
}

// callReconstruct makes an array without elements.
func callReconstruct(m *machine, args []any) (any, error) {
	if len(args) != 3 {
		return nil, m.badCall("numpy._reconstruct", args)
	}
	if g, ok := args[0].(*global); !ok || g.name != "numpy.ndarray" {
		return nil, m.refuse(kind(args[0]), "a kind of array")
	}
	return &array{}, nil
}

// buildArray sets an array's state: version, shape, dtype, whether it is column-major, and bytes.
func (m *machine) buildArray(a *array, state any) error {
	t, ok := state.(*tuple)
	if !ok || len(t.items) != 5 || a.done != nil {
		return m.malformed("the state of a numpy.ndarray is a %s", kind(state))
	}
	order := "C"
	if t.items[3] == true {
		order = "F"
	}
	done, err := m.newArray(t.items[4], t.items[2], t.items[1], order)
	if err != nil {
		return err
	}
	a.done = &done
	return nil
}

// callFromBuffer makes an array; its arguments are bytes, dtype, shape, and the order of the axes.
func callFromBuffer(m *machine, args []any) (any, error) {
	if len(args) != 4 && len(args) != 5 {
		return nil, m.badCall("numpy._frombuffer", args)
	}
	order, _ := args[3].(string)
	if order == "K" && len(args) == 5 {
		return m.transposed(args)
	}
	return m.newArray(args[0], args[1], args[2], order)
}

// callArray makes numpy.ndarray(shape, dtype, buffer), which is what Append writes.
func callArray(m *machine, args []any) (any, error) {
	if len(args) != 3 {
		return nil, m.badCall("numpy.ndarray", args)
	}
	return m.newArray(args[2], args[1], args[0], "C")
}

func (m *machine) newArray(data, elements, axes any, order string) (Array, error) {
	shape, err := m.shape(axes)
	if err != nil {
		return Array{}, err
	}
	l := layout{shape: shape}
	switch order {
	case "C":
		l.strides = rowMajor(shape)
	case "F":
		l.strides = columnMajor(shape)
	default:
		return Array{}, m.malformed("an array in the order %.40q", order)
	}
	return m.arrayOf(data, elements, l)
}

// transposed makes an array with exchanged axes, whose bytes are in row-major order of shape.
func (m *machine) transposed(args []any) (any, error) {
	shape, err := m.shape(args[2])
	if err != nil {
		return nil, err
	}
	axes, err := m.shape(args[4])
	if err != nil {
		return nil, err
	}
	if len(axes) != len(shape) {
		return nil, m.malformed("axes %v of shape %v", axes, shape)
	}
	before := rowMajor(shape)
	l := layout{shape: make([]int, len(axes)), strides: make([]int, len(axes))}
	seen := make([]bool, len(shape))
	for i, axis := range axes {
		if axis >= len(shape) || seen[axis] {
			return nil, m.malformed("axes %v of shape %v", axes, shape)
		}
		l.shape[i], l.strides[i], seen[axis] = shape[axis], before[axis], true
	}
	return m.arrayOf(args[0], args[1], l)
}

// arrayOf returns an array, and checks that data has exactly its bytes.
func (m *machine) arrayOf(data, elements any, l layout) (Array, error) {
	dt, err := m.dtypeOf(elements)
	if err != nil {
		return Array{}, err
	}
	b, ok := data.(*blob)
	if !ok {
		return Array{}, m.malformed("the elements of an array are a %s", kind(data))
	}
	if size, err := tensor.Size(dt.DType, l.shape...); err != nil || size != len(b.b) {
		return Array{}, m.malformed("an array of %v of shape %v in %d bytes", dt.DType, l.shape, len(b.b))
	}
	t, err := m.gather(dt.DType, b.b, l)
	if err != nil {
		return Array{}, err
	}
	return Array{t}, nil
}
