package wire

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// Codec turns objects into bytes and back. Many goroutines may use it.
type Codec interface {
	// Append appends the bytes of v, or of what v points to, to b.
	Append(b []byte, v any) ([]byte, error)
	// Parse makes b the value that v points to, which does not alias b. It takes bytes from
	// anywhere: whatever they are, the worst is an error.
	Parse(b []byte, v any) error
}

// MsgPack is the Codec of groups, unless they say otherwise: structs are maps of their exported fields (tag `codec` or `json`),
// []byte is binary and a string is text, also below any, where a map is a map[string]any and a list a []any.
// Equal values have equal bytes.
var MsgPack Codec = msgpack{}

// maxDepth bounds how deep what arrives may nest.
const maxDepth = 256

// handle has the one pair of settings that keeps strings and bytes apart below any (WriteExt, no RawToString). It has no
// extensions: nothing that arrives chooses a type, or code to run.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = false
	h.MapType = reflect.TypeFor[map[string]any]()
	h.Canonical = true
	h.ErrorIfNoArrayExpand = true
	h.CheckCircularRef = true // a cycle would be a stack overflow, which nobody can recover from
	h.MaxDepth = maxDepth
	h.MaxInitLen = 1 << 10 // a length that arrives is no reason to make room for it
	return h
}()

type msgpack struct{}

// coder is an encoder and a decoder, which are dear to make.
type coder struct {
	enc *codec.Encoder
	dec *codec.Decoder
}

var coders = sync.Pool{New: func() any {
	return &coder{codec.NewEncoderBytes(nil, handle), codec.NewDecoderBytes(nil, handle)}
}}

// release gives c back, without what it has last seen. One that failed is not used again.
func (c *coder) release() {
	none := []byte{}
	c.enc.ResetBytes(&none)
	c.dec.ResetBytes(none)
	coders.Put(c)
}

func (msgpack) Append(b []byte, v any) (_ []byte, err error) {
	if err := encodable(reflect.TypeOf(v)); err != nil {
		return b, err
	}
	c := coders.Get().(*coder)
	defer rescue(&err, "encoding", v)
	tail := b[len(b):] // the encoder uses b's room, if that is enough
	c.enc.ResetBytes(&tail)
	if err := c.enc.Encode(v); err != nil {
		return b, fmt.Errorf("msgpack: %w", err)
	}
	c.release()
	return append(b, tail...), nil
}

func (msgpack) Parse(b []byte, v any) (err error) {
	if len(b) == 0 {
		return errors.New("msgpack: no bytes")
	}
	c := coders.Get().(*coder)
	defer rescue(&err, "decoding", v)
	c.dec.ResetBytes(b)
	if err := c.dec.Decode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	if n := c.dec.NumBytesRead(); n != len(b) {
		return fmt.Errorf("msgpack: %d bytes after the end of a %T", len(b)-n, v)
	}
	c.release()
	return nil
}

// WriteMsgPack writes what MsgPack.Append appends, piece by piece, for values that are too large for one piece of memory.
func WriteMsgPack(w io.Writer, v any) (err error) {
	if err := encodable(reflect.TypeOf(v)); err != nil {
		return err
	}
	defer rescue(&err, "encoding", v)
	if err := codec.NewEncoder(w, handle).Encode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	return nil
}

// ReadMsgPack is MsgPack.Parse for what r has up to its end.
func ReadMsgPack(r io.Reader, v any) (err error) {
	defer rescue(&err, "decoding", v)
	if err := codec.NewDecoder(r, handle).Decode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	if n, _ := io.Copy(io.Discard, r); n > 0 {
		return fmt.Errorf("msgpack: %d bytes after the end of a %T", n, v)
	}
	return nil
}

// rescue makes a panic of the library an error: what it was given may come from anywhere.
func rescue(err *error, what string, v any) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("msgpack: %s a %T: %v", what, v, r)
	}
}

// checked has what encodable found out about a reflect.Type: an error, or nil.
var checked sync.Map

// encodable refuses types with parts that the library would encode as something else: it empties channels into
// lists, and functions become nil. What is below an interface is not seen.
func encodable(t reflect.Type) error {
	if t == nil {
		return nil
	}
	if err, ok := checked.Load(t); ok {
		err, _ := err.(error)
		return err
	}
	var err error
	if at, kind := opaque(t, map[reflect.Type]bool{}); kind != reflect.Invalid {
		err = fmt.Errorf("msgpack: a %v cannot be encoded: %v%s is a %v", t, t, at, kind)
	}
	checked.Store(t, err)
	return err
}

// opaque finds the first part of t that has no bytes.
func opaque(t reflect.Type, seen map[reflect.Type]bool) (at string, kind reflect.Kind) {
	if seen[t] || marshals(t) {
		return "", reflect.Invalid
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return "", t.Kind()
	case reflect.Map:
		if at, kind := opaque(t.Key(), seen); kind != reflect.Invalid {
			return "[key]" + at, kind
		}
		at, kind := opaque(t.Elem(), seen)
		return "[]" + at, kind
	case reflect.Slice, reflect.Array:
		at, kind := opaque(t.Elem(), seen)
		return "[]" + at, kind
	case reflect.Pointer:
		return opaque(t.Elem(), seen)
	case reflect.Struct:
		for f := range t.Fields() {
			if at, kind := opaque(f.Type, seen); kind != reflect.Invalid && travels(f) {
				return "." + f.Name + at, kind
			}
		}
	}
	return "", reflect.Invalid
}

// travels reports whether a field is encoded.
func travels(f reflect.StructField) bool {
	return f.IsExported() && f.Tag.Get("codec") != "-" && f.Tag.Get("json") != "-"
}

var marshaler = reflect.TypeFor[encoding.BinaryMarshaler]()

// marshals reports whether t makes bytes of itself.
func marshals(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}
