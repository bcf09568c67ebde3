package tree

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/tensor"
)

// Join sets *v, of the type that was split or an any, to the value of config with its tensors,
// which are not copied. If they do not fit, it returns an *Error with the path, and does not modify
// *v. That is so if a tensor is missing or belongs to no leaf, if a key occurs twice or *v has no
// field for it, or if a value has another type.
func Join(config []byte, tensors map[string]*tensor.Tensor, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return &Error{Err: fmt.Errorf("join into a pointer, not into %T", v)}
	}
	j := joiner{path: path{limit: maxDepth}, structs: structs{}, tensors: tensors, used: map[string]bool{}}
	text := path{limit: maxDepth + 1} // a tensor's own braces are not a level of the config
	n, err := text.parse(config)
	if err != nil {
		return err
	}
	made := reflect.New(target.Type().Elem()).Elem()
	if err := j.value(n, made); err != nil {
		return err
	}
	if err := j.unused(); err != nil {
		return err
	}
	target.Elem().Set(made)
	return nil
}

type joiner struct {
	path
	structs
	tensors map[string]*tensor.Tensor
	used    map[string]bool
}

// unused returns an error if a tensor belongs to no leaf.
func (j *joiner) unused() error {
	var names []string
	for name := range j.tensors {
		if !j.used[name] {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return &Error{Path: names[0], Err: fmt.Errorf("the config has no place for this tensor (%d such of %d)", len(names), len(j.tensors))}
}

// value sets v, which is zero, to the value of n.
func (j *joiner) value(n *node, v reflect.Value) error {
	switch t := v.Type(); {
	case t == pointerType && n.kind == 'n', t == tensorType && n.kind == 'n':
		return nil
	case t == pointerType:
		x, err := j.tensor(n)
		if err == nil {
			v.Set(reflect.ValueOf(x))
		}
		return err
	case t == tensorType:
		x, err := j.tensor(n)
		if err == nil {
			v.Set(reflect.ValueOf(*x))
		}
		return err
	case hasOwn(t):
		return j.own(n, v)
	case n.kind == 'n':
		return j.null(v)
	case isBytes(t) && n.kind == '"':
		return j.unmarshal(n, v)
	case isBytes(t): // encoding/json accepts an array, too
		return j.mismatch(n, v)
	}
	switch v.Kind() {
	case reflect.Interface:
		return j.untyped(n, v)
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		v.Set(p)
		return j.in(func() error { return j.value(n, p.Elem()) })
	case reflect.Struct:
		return j.object(n, v)
	case reflect.Map:
		return j.mapping(n, v)
	case reflect.Slice, reflect.Array:
		return j.array(n, v)
	}
	return j.scalar(n, v)
}

// null leaves v nil, if v can be nil.
func (j *joiner) null(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice:
		return nil
	}
	return j.mismatch(&node{raw: "null"}, v)
}

func (j *joiner) mismatch(n *node, v reflect.Value) error {
	return j.errorf("%.40s is no %v", n.raw, v.Type())
}

func (j *joiner) tensor(n *node) (*tensor.Tensor, error) {
	name, ok := n.marker(tensorKey)
	if !ok {
		return nil, j.errorf("%.40s is no tensor", n.raw)
	}
	x, ok := j.tensors[name]
	if !ok {
		return nil, j.errorf("the tensor %q is missing", name)
	}
	if err := x.Check(); err != nil {
		return nil, j.errorf("the tensor %q: %w", name, err)
	}
	j.used[name] = true
	return x, nil
}

// own decodes n with v's own methods.
func (j *joiner) own(n *node, v reflect.Value) error {
	if holdsTensor(v.Type(), map[reflect.Type]bool{}) {
		return j.errorf("%v has a method of its own for JSON or text, which does not join its tensors", v.Type())
	}
	return j.unmarshal(n, v)
}

func (j *joiner) unmarshal(n *node, v reflect.Value) error {
	if err := json.Unmarshal([]byte(n.raw), v.Addr().Interface()); err != nil {
		return j.errorf("%w", err)
	}
	return nil
}

func (j *joiner) scalar(n *node, v reflect.Value) error {
	kind := byte('0')
	switch v.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return j.errorf("a %v cannot be joined", v.Type())
	case reflect.Bool:
		kind = 't'
	case reflect.String:
		kind = '"'
	case reflect.Float32, reflect.Float64:
		if name, ok := n.marker(floatKey); ok {
			f, err := j.special(name)
			v.SetFloat(f)
			return err
		}
	}
	if n.kind != kind {
		return j.mismatch(n, v)
	}
	return j.unmarshal(n, v)
}

// special returns a float that has no JSON number.
func (j *joiner) special(name string) (float64, error) {
	switch name {
	case "NaN":
		return math.NaN(), nil
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	return 0, j.errorf("%q is no float: want NaN, Infinity or -Infinity", name)
}

func (j *joiner) array(n *node, v reflect.Value) error {
	if n.kind != '[' {
		return j.mismatch(n, v)
	}
	if v.Kind() == reflect.Slice {
		v.Set(reflect.MakeSlice(v.Type(), len(n.kids), len(n.kids)))
	} else if v.Len() != len(n.kids) {
		return j.errorf("%d elements are no %v", len(n.kids), v.Type())
	}
	for i, kid := range n.kids {
		if err := j.in(func() error { return j.value(kid, v.Index(i)) }, index(i)); err != nil {
			return err
		}
	}
	return nil
}

// members calls member for each member of an object, with the key before its escaping by Split.
func (j *joiner) members(n *node, member func(key string, kid *node) error) error {
	for i, kid := range n.kids {
		key := n.keys[i]
		if strings.HasPrefix(key, "$") {
			if key = key[1:]; !strings.HasPrefix(key, "$") {
				return j.errorf("%q is no key here: one of a user's own that begins with $ is written with one more", n.keys[i])
			}
		}
		if err := j.in(func() error { return member(key, kid) }, key); err != nil {
			return err
		}
	}
	return nil
}

func (j *joiner) object(n *node, v reflect.Value) error {
	if n.kind != '{' {
		return j.mismatch(n, v)
	}
	fields, err := j.of(v.Type())
	if err != nil {
		return j.errorf("%w", err)
	}
	return j.members(n, func(key string, kid *node) error {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key })
		if i < 0 {
			return j.errorf("%v has no such field", v.Type())
		}
		return j.value(kid, fieldByIndex(v, fields[i].index))
	})
}

// fieldByIndex returns a field, and allocates the embedded structs on the path to it.
func fieldByIndex(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

func (j *joiner) mapping(n *node, v reflect.Value) error {
	if n.kind != '{' {
		return j.mismatch(n, v)
	}
	t := v.Type()
	v.Set(reflect.MakeMap(t))
	return j.members(n, func(text string, kid *node) error {
		key, err := keyOf(text, t.Key())
		if err != nil {
			return j.errorf("%w", err)
		}
		if v.MapIndex(key).IsValid() {
			return j.errorf("the map has this key already")
		}
		elem := reflect.New(t.Elem()).Elem()
		if err := j.value(kid, elem); err != nil {
			return err
		}
		v.SetMapIndex(key, elem)
		return nil
	})
}

// keyOf is the inverse of keyText.
func keyOf(text string, t reflect.Type) (reflect.Value, error) {
	if t == reflect.TypeFor[string]() {
		return reflect.ValueOf(text), nil
	}
	object, err := json.Marshal(map[string]bool{text: true})
	if err != nil {
		return reflect.Value{}, err
	}
	one := reflect.New(reflect.MapOf(t, reflect.TypeFor[bool]()))
	if err := json.Unmarshal(object, one.Interface()); err != nil {
		return reflect.Value{}, err
	}
	for key := range one.Elem().Seq() {
		return key, nil
	}
	return reflect.Value{}, errors.New("encoding/json has no such key")
}

// untyped sets an interface.
func (j *joiner) untyped(n *node, v reflect.Value) error {
	if v.NumMethod() > 0 {
		return j.errorf("which type of a %v it was, JSON does not say", v.Type())
	}
	x, err := j.any(n)
	if err == nil && x != nil {
		v.Set(reflect.ValueOf(x))
	}
	return err
}

// any returns the value of n, whose type depends only on the JSON.
func (j *joiner) any(n *node) (any, error) {
	switch n.kind {
	case '"':
		return n.text, nil
	case 't':
		return n.raw == "true", nil
	case '0':
		return j.number(n)
	case '[':
		var all []any
		err := j.array(n, reflect.ValueOf(&all).Elem())
		return all, err
	case '{':
		return j.anyObject(n)
	}
	return nil, nil
}

func (j *joiner) anyObject(n *node) (any, error) {
	if _, ok := n.marker(tensorKey); ok {
		return j.tensor(n)
	}
	if name, ok := n.marker(floatKey); ok {
		return j.special(name)
	}
	var all map[string]any
	err := j.mapping(n, reflect.ValueOf(&all).Elem())
	return all, err
}

func (j *joiner) number(n *node) (any, error) {
	if i, err := strconv.ParseInt(n.raw, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(n.raw, 64)
	if err != nil {
		return nil, j.errorf("%.40s is too large for a number", n.raw)
	}
	return f, nil
}
