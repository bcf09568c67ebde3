package wire

import (
	"encoding"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// Codec encodes objects as bytes. It is safe for concurrent use.
type Codec interface {
	// Append appends the encoding of v, or of what v points to, to b.
	Append(b []byte, v any) ([]byte, error)
	// Parse decodes b into the value that v points to, which does not alias b. b may come from an
	// untrusted peer: at worst Parse returns an error.
	Parse(b []byte, v any) error
}

// MsgPack is the default Codec of groups. Structs are maps of their exported fields (tag `codec` or
// `json`), []byte is binary and a string is text. Below an interface, a map is decoded as a
// map[string]any and a list as a []any. Equal values have equal bytes.
var MsgPack Codec = msgpack{}

// maxDepth bounds the nesting of what is decoded.
const maxDepth = 256

// initLen is how many bytes or elements are allocated because of a length alone, in bytes from a
// peer, and readerInitLen from a reader, which is a file of this program.
const (
	initLen       = 1 << 10
	readerInitLen = 64 << 10
)

// whole is for encodings that are complete: their lengths are true. The library allocates in steps
// of at most the initial length, and copies at each step: in those of initLen, 16 MiB take half a
// minute.
var handle, readerHandle, whole = newHandle(initLen), newHandle(readerInitLen), newHandle(math.MaxInt)

// newHandle returns the only settings that keep strings and bytes apart below an interface (WriteExt,
// no RawToString). They have no extensions: received bytes choose no type and no code to run.
func newHandle(initLen int) *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = false
	h.MapType = reflect.TypeFor[map[string]any]()
	h.Canonical = true
	h.ErrorIfNoArrayExpand = true
	h.CheckCircularRef = true // a cycle would overflow the stack, which cannot be recovered from
	h.MaxDepth = maxDepth
	h.MaxInitLen = initLen
	return h
}

type msgpack struct{}

// coder is an encoder and two decoders, which are expensive to make.
type coder struct {
	enc        *codec.Encoder
	dec, large *codec.Decoder
}

var coders = sync.Pool{New: func() any {
	return &coder{codec.NewEncoderBytes(nil, handle), codec.NewDecoderBytes(nil, handle), codec.NewDecoderBytes(nil, whole)}
}}

// release gives c back to the pool, without references to what it has coded. A coder that failed is
// not reused.
func (c *coder) release() {
	none := []byte{}
	c.enc.ResetBytes(&none)
	c.dec.ResetBytes(none)
	c.large.ResetBytes(none)
	coders.Put(c)
}

func (msgpack) Append(b []byte, v any) (_ []byte, err error) {
	if err := encodable(v); err != nil {
		return b, err
	}
	c := coders.Get().(*coder)
	defer rescue(&err, "encoding", v)
	tail := b[len(b):] // the encoder uses the capacity of b if that is enough
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
	dec := c.dec
	if len(b) > initLen && complete(b) {
		dec = c.large
	}
	dec.ResetBytes(b)
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	if n := dec.NumBytesRead(); n != len(b) {
		return fmt.Errorf("msgpack: %d bytes after the end of a %T", len(b)-n, v)
	}
	c.release()
	return nil
}

// WriteMsgPack writes what MsgPack.Append appends, in pieces, for values that are too large for one
// buffer.
func WriteMsgPack(w io.Writer, v any) (err error) {
	if err := encodable(v); err != nil {
		return err
	}
	defer rescue(&err, "encoding", v)
	if err := codec.NewEncoder(w, handle).Encode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	return nil
}

// ReadMsgPack is MsgPack.Parse for all that r has up to its end.
func ReadMsgPack(r io.Reader, v any) (err error) {
	defer rescue(&err, "decoding", v)
	if err := codec.NewDecoder(r, readerHandle).Decode(v); err != nil {
		return fmt.Errorf("msgpack: %w", err)
	}
	if n, _ := io.Copy(io.Discard, r); n > 0 {
		return fmt.Errorf("msgpack: %d bytes after the end of a %T", n, v)
	}
	return nil
}

// rescue turns a panic of the library into an error, since its input may be untrusted.
func rescue(err *error, what string, v any) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("msgpack: %s a %T: %v", what, v, r)
	}
}

// checked caches by reflect.Type what is known of a type.
var checked sync.Map

type typeCheck struct {
	err    error // why it cannot be encoded
	nests  bool  // its values may have any number of levels
	fields []int // those for which a struct nests
}

func check(t reflect.Type) typeCheck {
	if c, ok := checked.Load(t); ok {
		return c.(typeCheck)
	}
	c := typeCheck{nests: nests(t, nil)}
	for i := 0; c.nests && t.Kind() == reflect.Struct && i < t.NumField(); i++ {
		if f := t.Field(i); travels(f) && nests(f.Type, []reflect.Type{t}) {
			c.fields = append(c.fields, i)
		}
	}
	if at, kind := opaque(t, map[reflect.Type]bool{}); kind != reflect.Invalid {
		c.err = fmt.Errorf("msgpack: a %v cannot be encoded: %v%s is a %v", t, t, at, kind)
	}
	checked.Store(t, c)
	return c
}

// encodable refuses types with parts that the library would encode as something else: it would
// drain channels into lists, and encode functions as nil. It does not see what is below an
// interface. It refuses values in more levels than Parse reads, too: with a map that contains
// itself the library would overflow the stack, which ends the process.
func encodable(v any) error {
	t := reflect.TypeOf(v)
	if t == nil {
		return nil
	}
	if err := check(t).err; err != nil {
		return err
	}
	if deeper(reflect.ValueOf(v), maxDepth) {
		return fmt.Errorf("msgpack: a %v has %d levels of lists and maps: does one contain itself?", t, maxDepth)
	}
	return nil
}

// nests reports whether values of t may have any number of levels: t contains an interface or, by
// way of the types in path, itself.
func nests(t reflect.Type, path []reflect.Type) bool {
	switch {
	case marshals(t):
		return false
	case t.Kind() == reflect.Interface || slices.Contains(path, t):
		return true
	}
	path = append(path, t)
	for _, part := range parts(t) {
		if nests(part, path) {
			return true
		}
	}
	return false
}

// parts yields the types that values of t consist of, after where they are in it.
func parts(t reflect.Type) iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		switch t.Kind() {
		case reflect.Map:
			_ = yield("[key]", t.Key()) && yield("[]", t.Elem())
		case reflect.Slice, reflect.Array:
			yield("[]", t.Elem())
		case reflect.Pointer:
			yield("", t.Elem())
		case reflect.Struct:
			for f := range t.Fields() {
				if travels(f) && !yield("."+f.Name, f.Type) {
					return
				}
			}
		}
	}
}

// deeper reports whether v has as many levels, or pointers in a row.
func deeper(v reflect.Value, levels int) bool {
	for range maxDepth {
		if v.Kind() != reflect.Pointer && v.Kind() != reflect.Interface {
			if !v.IsValid() {
				return false
			}
			c := check(v.Type())
			return c.nests && (levels == 1 || partDeeper(v, c.fields, levels-1))
		}
		v = v.Elem()
	}
	return true
}

// partDeeper is deeper for the parts of v.
func partDeeper(v reflect.Value, fields []int, levels int) bool {
	switch v.Kind() {
	case reflect.Map:
		key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		for all := v.MapRange(); all.Next(); {
			key.SetIterKey(all)
			elem.SetIterValue(all)
			if deeper(key, levels) || deeper(elem, levels) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if deeper(v.Index(i), levels) {
				return true
			}
		}
	case reflect.Struct:
		for _, i := range fields {
			if deeper(v.Field(i), levels) {
				return true
			}
		}
	}
	return false
}

// opaque returns the path and the kind of the first part of t that has no encoding.
func opaque(t reflect.Type, seen map[reflect.Type]bool) (at string, kind reflect.Kind) {
	if seen[t] || marshals(t) {
		return "", reflect.Invalid
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Complex64, reflect.Complex128:
		return "", t.Kind()
	}
	for at, part := range parts(t) {
		if below, kind := opaque(part, seen); kind != reflect.Invalid {
			return at + below, kind
		}
	}
	return "", reflect.Invalid
}

// travels reports whether a field is encoded.
func travels(f reflect.StructField) bool {
	return f.IsExported() && f.Tag.Get("codec") != "-" && f.Tag.Get("json") != "-"
}

var marshaler = reflect.TypeFor[encoding.BinaryMarshaler]()

// marshals reports whether t encodes itself.
func marshals(t reflect.Type) bool {
	return t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)
}
