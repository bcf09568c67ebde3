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
	for _, own := range ownTypes {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			return true
		}
	}
	return false
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
	name      string
	index     []int // a path through embedded structs
	tagged    bool
	omitEmpty bool
	omitZero  bool
}

// structs caches the fields of struct types during one walk.
type structs map[reflect.Type][]field

func (s structs) of(t reflect.Type) ([]field, error) {
	if fields, ok := s[t]; ok {
		return fields, nil
	}
	found, err := collect(t, nil, map[reflect.Type]bool{})
	if err != nil {
		return nil, err
	}
	fields, err := dominant(t, found)
	s[t] = fields
	return fields, err
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
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "omitempty":
			f.omitEmpty = true
		case "omitzero":
			f.omitZero = true
		case "string":
			return f, fmt.Errorf("field %s of %v: the option string in its tag is not supported", sf.Name, t)
		}
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

// dominant returns, of the fields with the same name, the one that Go would select, or otherwise
// the one with a tag. If neither rule selects one, encoding/json drops the fields; this is an error
// here.
func dominant(t reflect.Type, all []field) ([]field, error) {
	best := map[string]field{}
	double := map[string]bool{}
	for _, f := range all {
		b, ok := best[f.name]
		switch {
		case !ok || stronger(f, b):
			best[f.name] = f
			double[f.name] = false
		case !stronger(b, f):
			double[f.name] = true
		}
	}
	var left []field
	for _, f := range all {
		if b := best[f.name]; !slices.Equal(f.index, b.index) {
			continue
		}
		if double[f.name] {
			return nil, fmt.Errorf("%v has two fields that are %q in JSON", t, f.name)
		}
		left = append(left, f)
	}
	return left, nil
}

func stronger(a, b field) bool {
	if len(a.index) != len(b.index) {
		return len(a.index) < len(b.index)
	}
	return a.tagged && !b.tagged
}

// omitted reports whether v is left out of the JSON.
func (f *field) omitted(v reflect.Value) bool {
	if f.omitEmpty {
		switch v.Kind() {
		case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
			if v.Len() == 0 {
				return true
			}
		case reflect.Struct:
		default:
			if v.IsZero() {
				return true
			}
		}
	}
	return f.omitZero && isZero(v)
}

type isZeroer interface{ IsZero() bool }

// isZero calls a method IsZero where encoding/json does: it depends on the field's type, not on the
// dynamic type of its value.
func isZero(v reflect.Value) bool {
	t, zeroer := v.Type(), reflect.TypeFor[isZeroer]()
	switch {
	case t.Implements(zeroer):
		switch t.Kind() {
		case reflect.Interface:
			if v.IsNil() || v.Elem().Kind() == reflect.Pointer && v.Elem().IsNil() {
				return true
			}
		case reflect.Pointer:
			if v.IsNil() {
				return true
			}
		}
		return v.Interface().(isZeroer).IsZero()
	case reflect.PointerTo(t).Implements(zeroer):
		p := reflect.New(t)
		p.Elem().Set(v)
		return p.Interface().(isZeroer).IsZero()
	}
	return v.IsZero()
}
