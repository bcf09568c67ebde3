package tree

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/muster-pg/muster/tensor"
)

var (
	tensorType  = reflect.TypeFor[tensor.Tensor]()
	pointerType = reflect.TypeFor[*tensor.Tensor]()
	numberType  = reflect.TypeFor[json.Number]()
	ownTypes    = [...]reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	}
)

// hasOwn reports whether t has methods by which encoding/json converts it.
func hasOwn(t reflect.Type) bool {
	if t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer {
		return false // the types that they refer to may have them
	}
	if t == numberType {
		return true
	}
	return slices.ContainsFunc(ownTypes[:], func(own reflect.Type) bool { return t.Implements(own) || reflect.PointerTo(t).Implements(own) })
}

// isBytes reports whether encoding/json encodes t as base64.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !hasOwn(t.Elem())
}

// holdsTensor reports whether t may hold tensors in its exported fields. An interface may.
func holdsTensor(t reflect.Type, seen map[reflect.Type]bool) bool {
	if t == tensorType {
		return true
	}
	if seen[t] {
		return false
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return holdsTensor(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && holdsTensor(f.Type, seen) {
				return true
			}
		}
	}
	return false
}

// field is a field of a struct, as encoded in JSON.
type field struct {
	name   string
	index  []int // a path through embedded structs
	tagged bool
}

// structs caches the fields of struct types during one walk.
type structs map[reflect.Type][]field

func (s structs) of(t reflect.Type) ([]field, error) {
	if fields, ok := s[t]; ok {
		return fields, nil
	}
	fields, err := collect(t, nil, map[reflect.Type]bool{})
	if err == nil {
		err = distinct(t, fields)
	}
	if err != nil {
		return nil, err
	}
	s[t] = fields
	return fields, nil
}

// collect returns all fields of t. Fields of embedded structs follow the position of the embedded
// struct.
func collect(t reflect.Type, index []int, above map[reflect.Type]bool) (all []field, err error) {
	if above[t] {
		return nil, nil // it embeds itself: its own fields hide these
	}
	above[t] = true
	defer delete(above, t)
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clip(index), i)
		f, err := parseTag(t, sf)
		if err != nil {
			return nil, err
		}
		inner := sf.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch flat := sf.Anonymous && !f.tagged && inner.Kind() == reflect.Struct && inner != tensorType && !hasOwn(inner); {
		case f.name == "-" && !f.tagged, !sf.IsExported() && !flat:
		case flat && !sf.IsExported() && sf.Type.Kind() == reflect.Pointer:
			return nil, fmt.Errorf("%v embeds %v, which is not exported and cannot be set", t, sf.Type)
		case flat:
			more, err := collect(inner, at, above)
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		default:
			f.index = at
			all = append(all, f)
		}
	}
	return all, nil
}

// parseTag parses a field's tag. A field with the name "-" and without tagged is left out.
func parseTag(t reflect.Type, sf reflect.StructField) (field, error) {
	tag := sf.Tag.Get("json")
	if tag == "-" {
		return field{name: "-"}, nil
	}
	name, options, _ := strings.Cut(tag, ",")
	f := field{name: name, tagged: validName(name)}
	if !f.tagged {
		f.name = sf.Name
	}
	if slices.Contains(strings.Split(options, ","), "string") {
		return f, fmt.Errorf("field %s of %v: the option string in its tag is not supported", sf.Name, t)
	}
	return f, nil
}

// validName is encoding/json's rule for names in tags. If a tag breaks it, the field keeps its own
// name.
func validName(name string) bool {
	for _, c := range name {
		if !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			return false
		}
	}
	return name != ""
}

// distinct returns an error if two fields have the same name. encoding/json would take one of them, or
// neither.
func distinct(t reflect.Type, all []field) error {
	seen := map[string]bool{}
	for _, f := range all {
		if seen[f.name] {
			return fmt.Errorf("%v has two fields that are %q in JSON: give one of them another name", t, f.name)
		}
		seen[f.name] = true
	}
	return nil
}
