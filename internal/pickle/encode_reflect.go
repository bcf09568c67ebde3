package pickle

import (
	"bytes"
	"fmt"
	"math/big"
	"reflect"
	"slices"
)

// reflected writes a value whose underlying type is one that Append knows.
func (e *encoder) reflected(v reflect.Value, depth int) error {
	switch v.Kind() {
	case reflect.Bool:
		return e.value(v.Bool(), depth)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return e.value(v.Int(), depth)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return e.big(new(big.Int).SetUint64(v.Uint()))
	case reflect.Float32, reflect.Float64:
		return e.value(v.Float(), depth)
	case reflect.String:
		return e.value(v.String(), depth)
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return e.value(nil, depth)
		}
		return e.value(v.Elem().Interface(), depth+1)
	case reflect.Slice, reflect.Array:
		return e.sequence(v, depth)
	case reflect.Map:
		return e.mapped(v, depth)
	}
	return fmt.Errorf("a %v is no plain value", v.Type())
}

func (e *encoder) sequence(v reflect.Value, depth int) error {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		b := make([]byte, v.Len())
		for i := range b {
			b[i] = byte(v.Index(i).Uint())
		}
		e.bytes(b)
		return nil
	}
	e.raw(']', '(')
	for i := range v.Len() {
		if err := e.value(v.Index(i).Interface(), depth+1); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	e.raw('e')
	return nil
}

// mapped writes a dict in the order of its keys' pickles, so that equal maps have equal bytes.
func (e *encoder) mapped(v reflect.Value, depth int) error {
	type entry struct{ key, item []byte }
	var entries []entry
	seen := map[string]bool{}
	for iter := v.MapRange(); iter.Next(); {
		var key, item encoder
		if err := key.key(iter.Key().Interface(), seen, depth); err != nil {
			return fmt.Errorf("key %v: %w", iter.Key(), err)
		}
		if err := item.value(iter.Value().Interface(), depth+1); err != nil {
			return fmt.Errorf("value of key %v: %w", iter.Key(), err)
		}
		entries = append(entries, entry{key.b, item.b})
	}
	slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	e.raw('}', '(')
	for _, entry := range entries {
		e.b = append(append(e.b, entry.key...), entry.item...)
	}
	e.raw('u')
	return nil
}
