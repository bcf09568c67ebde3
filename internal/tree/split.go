package tree

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/muster-pg/muster/tensor"
)

// Split splits v into JSON, which is the same for the same v, and the tensors in its leaves by
// name, which share memory with v's. It returns an *Error for a value that it cannot split: a func,
// a cycle, a string that is not UTF-8, or an invalid tensor.
func Split(v any) (config []byte, tensors map[string]*tensor.Tensor, err error) {
	s := splitter{path: path{limit: maxDepth}, structs: structs{}, tensors: map[string]*tensor.Tensor{}}
	if err := s.value(reflect.ValueOf(v), false); err != nil {
		return nil, nil, err
	}
	return s.out, s.tensors, nil
}

type splitter struct {
	path
	structs
	out     []byte
	tensors map[string]*tensor.Tensor
}

// value writes v. If untyped, v is below an interface, where Join has only the JSON and no type.
func (s *splitter) value(v reflect.Value, untyped bool) error {
	if !v.IsValid() {
		return s.write("null")
	}
	switch t := v.Type(); {
	case t == pointerType:
		return s.tensor(v.Interface().(*tensor.Tensor))
	case t == tensorType && v.IsZero():
		return s.write("null")
	case t == tensorType:
		x := v.Interface().(tensor.Tensor)
		return s.tensor(&x)
	case hasOwn(t):
		return s.own(v, untyped)
	case isBytes(t):
		return s.marshal(v.Interface())
	}
	switch v.Kind() {
	case reflect.Interface:
		return s.follow(v, true)
	case reflect.Pointer:
		return s.follow(v, untyped)
	case reflect.Struct:
		return s.object(v, untyped)
	case reflect.Map:
		return s.mapping(v, untyped)
	case reflect.Slice, reflect.Array:
		return s.array(v, untyped)
	}
	return s.scalar(v)
}

func (s *splitter) write(text string) error {
	s.out = append(s.out, text...)
	return nil
}

// marshal writes the encoding of v by encoding/json.
func (s *splitter) marshal(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return s.errorf("%w", err)
	}
	s.out = append(s.out, b...)
	return nil
}

// scalar writes a leaf that is not a tensor.
func (s *splitter) scalar(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return s.marshal(v.Interface())
	case reflect.Float32, reflect.Float64:
		return s.float(v)
	case reflect.String:
		return s.text(v.String())
	}
	return s.errorf("a %v cannot be split", v.Type())
}

func (s *splitter) text(text string) error {
	if !utf8.ValidString(text) {
		return s.errorf("the string %q is not UTF-8, which JSON is: make it a []byte", text[:min(len(text), 40)])
	}
	return s.marshal(text)
}

func (s *splitter) float(v reflect.Value) error {
	f := v.Float()
	name := ""
	switch {
	case math.IsNaN(f):
		name = "NaN"
	case math.IsInf(f, 1):
		name = "Infinity"
	case math.IsInf(f, -1):
		name = "-Infinity"
	default:
		at := len(s.out)
		if err := s.marshal(v.Interface()); err != nil {
			return err
		}
		if !bytes.ContainsAny(s.out[at:], ".e") {
			s.out = append(s.out, ".0"...)
		}
		return nil
	}
	return s.write(`{"` + floatKey + `":"` + name + `"}`)
}

func (s *splitter) tensor(x *tensor.Tensor) error {
	if x == nil {
		return s.write("null")
	}
	if err := x.Check(); err != nil {
		return s.errorf("%w", err)
	}
	name := s.tensorName()
	s.tensors[name] = x
	s.out = append(s.out, `{"`+tensorKey+`":`...)
	if err := s.text(name); err != nil {
		return err
	}
	return s.write("}")
}

// own writes v by its own methods. If v is typed, Join decodes it by its own methods, so the JSON
// is written unchanged. If untyped, its keys are escaped like all others.
func (s *splitter) own(v reflect.Value, untyped bool) error {
	if holdsTensor(v.Type(), map[reflect.Type]bool{}) {
		return s.errorf("%v has a method of its own for JSON or text, which does not part its tensors", v.Type())
	}
	p := reflect.New(v.Type()) // encoding/json uses the pointer's methods only if it gets a pointer
	p.Elem().Set(v)
	text, err := json.Marshal(p.Interface())
	if err != nil {
		return s.errorf("%w", err)
	}
	n, err := s.parse(text)
	if err != nil {
		return err
	}
	if untyped {
		return s.node(n)
	}
	return s.write(n.raw)
}

// node writes n with escaped keys.
func (s *splitter) node(n *node) error {
	switch n.kind {
	case '{':
		return s.members(len(n.kids), func(i int) (string, func() error) {
			return n.keys[i], func() error { return s.node(n.kids[i]) }
		})
	case '[':
		return s.elements(len(n.kids), func(i int) error { return s.node(n.kids[i]) })
	}
	return s.write(n.raw)
}

func (s *splitter) follow(v reflect.Value, untyped bool) error {
	if v.IsNil() {
		return s.write("null")
	}
	return s.in(func() error { return s.value(v.Elem(), untyped) })
}

func (s *splitter) array(v reflect.Value, untyped bool) error {
	if v.Kind() == reflect.Slice && v.IsNil() {
		return s.write("null")
	}
	return s.elements(v.Len(), func(i int) error { return s.value(v.Index(i), untyped) })
}

func (s *splitter) elements(n int, element func(i int) error) error {
	s.out = append(s.out, '[')
	for i := range n {
		if i > 0 {
			s.out = append(s.out, ',')
		}
		if err := s.in(func() error { return element(i) }, index(i)); err != nil {
			return err
		}
	}
	return s.write("]")
}

// members writes an object of n members.
func (s *splitter) members(n int, member func(i int) (key string, value func() error)) error {
	s.out = append(s.out, '{')
	for i := range n {
		if i > 0 {
			s.out = append(s.out, ',')
		}
		key, value := member(i)
		if err := s.text(escapeKey(key)); err != nil {
			return err
		}
		s.out = append(s.out, ':')
		if err := s.in(value, key); err != nil {
			return err
		}
	}
	return s.write("}")
}

func (s *splitter) object(v reflect.Value, untyped bool) error {
	fields, err := s.of(v.Type())
	if err != nil {
		return s.errorf("%w", err)
	}
	var names []string
	var values []reflect.Value
	for _, f := range fields {
		part, err := v.FieldByIndexErr(f.index)
		if err != nil { // the field is in an embedded pointer that is nil
			continue
		}
		names, values = append(names, f.name), append(values, part)
	}
	return s.members(len(names), func(i int) (string, func() error) {
		return names[i], func() error { return s.value(values[i], untyped) }
	})
}

func (s *splitter) mapping(v reflect.Value, untyped bool) error {
	if v.IsNil() {
		return s.write("null")
	}
	values := make(map[string]reflect.Value, v.Len())
	for k, e := range v.Seq2() {
		key, err := keyText(k)
		if err != nil {
			return s.errorf("%w", err)
		}
		if _, ok := values[key]; ok {
			return s.errorf("two keys of the map are %q in JSON", key)
		}
		values[key] = e
	}
	keys := slices.Sorted(maps.Keys(values))
	return s.members(len(keys), func(i int) (string, func() error) {
		return keys[i], func() error { return s.value(values[keys[i]], untyped) }
	})
}

// keyText returns the encoding of a map's key by encoding/json.
func keyText(k reflect.Value) (string, error) {
	if k.Kind() == reflect.String {
		return k.String(), nil
	}
	one := reflect.MakeMap(reflect.MapOf(k.Type(), reflect.TypeFor[bool]()))
	one.SetMapIndex(k, reflect.ValueOf(true))
	text, err := json.Marshal(one.Interface())
	if err != nil {
		return "", err
	}
	var key string
	err = json.Unmarshal(text[1:len(text)-len(":true}")], &key)
	return key, err
}
