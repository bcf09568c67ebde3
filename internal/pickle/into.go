package pickle

import (
	"fmt"
	"reflect"
)

// ParseInto parses a pickle into *v: v is a pointer to an any, to a type of the package comment, or
// to an int. A value that does not fit is an error that names its type, and *v stays as it is.
func ParseInto(b []byte, v any) error {
	got, err := Parse(b)
	if err != nil {
		return err
	}
	if n, ok := got.(int64); ok && int64(int(n)) == n {
		if to, ok := v.(*int); ok {
			*to = int(n)
			return nil
		}
	}
	to := reflect.ValueOf(v).Elem()
	switch from := reflect.ValueOf(got); {
	case from.IsValid() && from.Type().AssignableTo(to.Type()):
		to.Set(from)
		return nil
	case !from.IsValid() && holdsNil(to.Kind()):
		to.SetZero()
		return nil
	}
	return fmt.Errorf("pickle: Python's %s does not fit into %v", kind(got), to.Type())
}

// holdsNil reports whether None has a Go value in types of that kind.
func holdsNil(k reflect.Kind) bool {
	return k == reflect.Interface || k == reflect.Pointer || k == reflect.Slice
}
