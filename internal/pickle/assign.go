package pickle

import (
	"fmt"
	"math/big"
	"reflect"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// Codec exchanges objects with the groups of vLLM. Its Parse takes a pointer to an any, to one of
// the types in the package comment, or to a type that can hold the value without loss: numbers,
// strings, slices, arrays, maps and pointers to them.
var Codec wire.Codec = codec{}

type codec struct{}

func (codec) Append(b []byte, v any) ([]byte, error) { return Append(b, v) }

func (codec) Parse(b []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("pickle: a %T cannot be parsed into: a pointer is needed", v)
	}
	from, err := Parse(b)
	if err != nil {
		return err
	}
	if err := assign(to.Elem(), from); err != nil {
		return fmt.Errorf("pickle: %w", err)
	}
	return nil
}

var (
	bigType    = reflect.TypeFor[*big.Int]()
	tensorType = reflect.TypeFor[*tensor.Tensor]()
)

// misfit returns the error of a value that would lose information.
func misfit(to reflect.Value, v any) error {
	return fmt.Errorf("%s does not fit into %v", kind(v), to.Type())
}

// assign sets to to v.
func assign(to reflect.Value, v any) error {
	if v == nil {
		return assignNone(to)
	}
	from := reflect.ValueOf(v)
	if from.Type().AssignableTo(to.Type()) {
		to.Set(from)
		return nil
	}
	switch to.Kind() {
	case reflect.Pointer:
		return assignPointer(to, v)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if n, ok := v.(int64); ok && !to.OverflowInt(n) {
			to.SetInt(n)
			return nil
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if n, ok := toUint(v); ok && !to.OverflowUint(n) {
			to.SetUint(n)
			return nil
		}
	case reflect.Float32, reflect.Float64:
		return assignFloat(to, v)
	case reflect.Bool, reflect.String:
		if from.Kind() == to.Kind() {
			to.Set(from.Convert(to.Type()))
			return nil
		}
	case reflect.Slice, reflect.Array:
		return assignItems(to, v)
	case reflect.Map:
		return assignMap(to, v)
	}
	return misfit(to, v)
}

func assignNone(to reflect.Value) error {
	switch to.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		to.SetZero()
		return nil
	}
	return misfit(to, nil)
}

func assignPointer(to reflect.Value, v any) error {
	switch to.Type() {
	case bigType:
		if n, ok := v.(int64); ok {
			to.Set(reflect.ValueOf(big.NewInt(n)))
			return nil
		}
		return misfit(to, v)
	case tensorType:
		if a, ok := v.(Array); ok {
			to.Set(reflect.ValueOf(a.Tensor))
			return nil
		}
		return misfit(to, v)
	}
	elem := reflect.New(to.Type().Elem())
	if err := assign(elem.Elem(), v); err != nil {
		return err
	}
	to.Set(elem)
	return nil
}

func toUint(v any) (uint64, bool) {
	switch v := v.(type) {
	case int64:
		return uint64(v), v >= 0
	case *big.Int:
		return v.Uint64(), v.IsUint64()
	}
	return 0, false
}

// assignFloat also converts ints, as Python does, if the conversion is exact.
func assignFloat(to reflect.Value, v any) error {
	switch v := v.(type) {
	case float64:
		if to.Kind() == reflect.Float32 && v == v && float64(float32(v)) != v {
			return fmt.Errorf("float %v does not fit into %v", v, to.Type())
		}
		to.SetFloat(v)
		return nil
	case int64:
		to.SetFloat(float64(v))
		if back, accuracy := big.NewFloat(to.Float()).Int64(); back == v && accuracy == big.Exact {
			return nil
		}
	}
	return misfit(to, v)
}

// assignItems fills a slice or an array.
func assignItems(to reflect.Value, v any) error {
	switch v := v.(type) {
	case []byte:
		return assignBytes(to, v)
	case ByteArray:
		return assignBytes(to, v)
	case NcclUniqueID:
		return assignBytes(to, v[:])
	case []any:
		return assignList(to, v)
	case Tuple:
		return assignList(to, v)
	}
	return misfit(to, v)
}

func assignBytes(to reflect.Value, b []byte) error {
	if to.Type().Elem().Kind() != reflect.Uint8 {
		return misfit(to, b)
	}
	if err := makeRoom(to, len(b)); err != nil {
		return err
	}
	for i, c := range b {
		to.Index(i).SetUint(uint64(c))
	}
	return nil
}

func assignList(to reflect.Value, items []any) error {
	if err := makeRoom(to, len(items)); err != nil {
		return err
	}
	for i, item := range items {
		if err := assign(to.Index(i), item); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// makeRoom makes a slice of n items, or checks that an array has n.
func makeRoom(to reflect.Value, n int) error {
	if to.Kind() == reflect.Array {
		if to.Len() != n {
			return fmt.Errorf("%d items do not fit into %v", n, to.Type())
		}
		return nil
	}
	to.Set(reflect.MakeSlice(to.Type(), n, n))
	return nil
}

func assignMap(to reflect.Value, v any) error {
	d, ok := v.(Dict)
	if !ok {
		return misfit(to, v)
	}
	m := reflect.MakeMapWithSize(to.Type(), len(d))
	for i, item := range d {
		key := reflect.New(to.Type().Key()).Elem()
		if err := assign(key, item.Key); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
		if !key.Comparable() {
			return fmt.Errorf("key %d: a %s is no key of a map of Go", i, kind(item.Key))
		}
		value := reflect.New(to.Type().Elem()).Elem()
		if err := assign(value, item.Value); err != nil {
			return fmt.Errorf("value of key %d: %w", i, err)
		}
		m.SetMapIndex(key, value)
	}
	to.Set(m)
	return nil
}
