package pgroup

import (
	"fmt"
	"reflect"

	"github.com/muster-pg/muster/wire"
)

// Names of types that are not encoded as they are.
const (
	bytesType  = "[]byte"         // any slice of bytes, which is sent as it is
	anyType    = "any"            // encoded as what it holds
	tensorType = "*tensor.Tensor" // which a collective verb does not name
)

// typeName returns the name under which ranks compare types. It does not allocate.
func typeName[T any]() string {
	t := reflect.TypeFor[T]()
	switch {
	case isBytes(t):
		return bytesType
	case t.Kind() == reflect.Interface && t.NumMethod() == 0:
		return anyType
	}
	name := t.String()
	return name[:min(len(name), 512)]
}

// recordType is typeName for collective verbs. It is empty for a tensor, which agrees with all
// types: ranks of other languages name the dtype and shape of an array.
func recordType[T any]() string {
	if name := typeName[T](); name != tensorType {
		return name
	}
	return ""
}

func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8
}

// encode returns the encoding of *v: a slice of bytes itself, or else bytes in the capacity of buf.
// An object that exceeds the limit is an error.
func encode[T any](codec wire.Codec, buf []byte, v *T) (b []byte, err error) {
	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		b = *p
	} else if isBytes(reflect.TypeFor[T]()) {
		b = reflect.ValueOf(v).Elem().Bytes()
	} else if b, err = codec.Append(buf[:0], v); err != nil {
		return nil, err
	}
	return b, checkSize(len(b))
}

// rescue turns a panic of a codec, or of an object that it encodes, into an error: this rank still
// votes.
func rescue(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("panic: %v", r)
	}
}

// decode decodes b into *v, which may alias b.
func decode[T any](codec wire.Codec, b []byte, v *T) (err error) {
	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		*p = b
		return nil
	}
	if isBytes(reflect.TypeFor[T]()) {
		reflect.ValueOf(v).Elem().SetBytes(b)
		return nil
	}
	return codec.Parse(b, v)
}

func checkSize(n int) error {
	if n <= wire.MaxValue {
		return nil
	}
	const text = "an object of %.1f MiB, the limit is %d MiB: send it in slices, or tensors with package gather or collective of Go"
	return &argumentError{fmt.Sprintf(text, float64(n)/(1<<20), wire.MaxValue>>20), ErrTooLarge}
}

// maxKeptBuffer bounds the buffer for objects that a group keeps, in bytes.
const maxKeptBuffer = 64 << 10

// encodeIn is encode for a collective operation: an object that cannot be encoded makes the vote a
// no.
func encodeIn[T any](cl *call, v *T) []byte {
	b, err := encode(cl.cfg.Codec, cl.buf, v)
	if err != nil {
		cl.refuse(refusalCode(err), err)
		return nil
	}
	if !isBytes(reflect.TypeFor[T]()) {
		cl.keepBuffer(b)
	}
	return b
}

// keepBuffer keeps b as the buffer for the next object.
func (cl *call) keepBuffer(b []byte) {
	if cap(b) <= maxKeptBuffer {
		cl.buf = b
	}
}

// encodeParts encodes one object for each rank as one payload.
func encodeParts[T any](cl *call, vs []T) []byte {
	if len(vs) != cl.size {
		cl.refuse(wire.CodeInvalid, fmt.Errorf("%d objects for a group of %d", len(vs), cl.size))
		return nil
	}
	parts := make([][]byte, len(vs))
	size := 4
	for i := range vs {
		b, err := encode(cl.cfg.Codec, nil, &vs[i])
		if err != nil {
			cl.refuse(refusalCode(err), fmt.Errorf("the object for rank %d: %w", i, err))
			return nil
		}
		parts[i] = b
		size += 4 + len(b)
	}
	if err := checkSize(size); err != nil {
		cl.refuse(wire.CodeTooLarge, fmt.Errorf("all objects together: %w", err))
		return nil
	}
	return wire.AppendParts(make([]byte, 0, size), parts)
}

// decodeAll decodes one object of each rank.
func decodeAll[T any](cl *call, got [][]byte) ([]T, error) {
	if err := cl.checkCount(cl.size, got); err != nil {
		return nil, err
	}
	vs := make([]T, len(got))
	for rank, b := range got {
		if err := decode(cl.cfg.Codec, b, &vs[rank]); err != nil {
			return nil, cl.undecodable(rank, err)
		}
	}
	return vs, nil
}

// decodeOne decodes the object of a root.
func decodeOne[T any](cl *call, got [][]byte) (v T, err error) {
	if err := cl.checkCount(1, got); err != nil {
		return v, err
	}
	if err := decode(cl.cfg.Codec, got[0], &v); err != nil {
		return v, cl.undecodable(cl.c.Root, err)
	}
	return v, nil
}
