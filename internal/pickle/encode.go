package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"unicode/utf8"

	"github.com/muster-pg/muster/tensor"
)

// Append appends v as a pickle that Python reads. If v is none of the values in the package
// comment, the error has the place in v, and b is returned unchanged.
func Append(b []byte, v any) ([]byte, error) {
	e := encoder{b: append(b, 0x80, 4)}
	if err := e.value(v, 1); err != nil {
		return b, fmt.Errorf("pickle: %w", err)
	}
	return append(e.b, opStop), nil
}

type encoder struct{ b []byte }

func (e *encoder) raw(b ...byte) { e.b = append(e.b, b...) }

func (e *encoder) value(v any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("values are more than %d deep, or one holds itself: %w", maxDepth, ErrTooLarge)
	}
	switch v := v.(type) {
	case nil:
		e.raw('N')
	case bool:
		e.raw(map[bool]byte{true: 0x88, false: 0x89}[v])
	case int:
		e.int(int64(v))
	case int64:
		e.int(v)
	case *big.Int:
		return e.big(v)
	case float64:
		e.raw('G')
		e.b = binary.BigEndian.AppendUint64(e.b, math.Float64bits(v))
	case string:
		return e.text(v)
	case []byte:
		e.bytes(v)
	case ByteArray:
		e.byteArray(v)
	case []any:
		return e.list(v, depth)
	case Tuple:
		return e.tuple(v, depth)
	case Dict:
		return e.dict(v, depth)
	default:
		return e.special(v)
	}
	return nil
}

func (e *encoder) special(v any) error {
	switch v := v.(type) {
	case Array:
		return e.array(v)
	case *tensor.Tensor:
		return e.tensor(v)
	case NcclUniqueID:
		e.global("_ctypes", "_unpickle")
		e.global(nccl, "ncclUniqueId")
		e.raw('}')
		e.bytes(v[:])
		e.raw(0x86, 0x86, 'R')
		return nil
	}
	return fmt.Errorf("%T is no plain value: those are nil, booleans, numbers, strings, bytes, lists, tuples, dicts, arrays and tensors", v)
}

// global writes a name that Python imports.
func (e *encoder) global(module, name string) {
	e.shortText(module)
	e.shortText(name)
	e.raw(0x93)
}

// shortText writes a str of less than 256 bytes.
func (e *encoder) shortText(s string) {
	e.raw(0x8c, byte(len(s)))
	e.b = append(e.b, s...)
}

// oldText writes a str in protocol 2.
func (e *encoder) oldText(s string) {
	e.raw('X')
	e.b = append(binary.LittleEndian.AppendUint32(e.b, uint32(len(s))), s...)
}

func (e *encoder) text(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("a string that is not UTF-8 is no str: make it []byte")
	}
	e.sized(0x8c, 'X', 0x8d, len(s))
	e.b = append(e.b, s...)
	return nil
}

func (e *encoder) bytes(b []byte) {
	e.sized('C', 'B', 0x8e, len(b))
	e.b = append(e.b, b...)
}

// sized writes one of three opcodes, and the length in the encoding of that opcode.
func (e *encoder) sized(short, long, huge byte, n int) {
	switch {
	case n <= math.MaxUint8:
		e.raw(short, byte(n))
	case uint64(n) <= math.MaxUint32:
		e.raw(long)
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(n))
	default:
		e.raw(huge)
		e.b = binary.LittleEndian.AppendUint64(e.b, uint64(n))
	}
}

func (e *encoder) byteArray(b []byte) {
	e.global("builtins", "bytearray")
	e.bytes(b)
	e.raw(0x85, 'R')
}

func (e *encoder) int(v int64) {
	switch {
	case v >= 0 && v <= math.MaxUint8:
		e.raw('K', byte(v))
	case v >= 0 && v <= math.MaxUint16:
		e.raw('M', byte(v), byte(v>>8))
	case v == int64(int32(v)):
		e.raw('J')
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(v))
	default:
		e.raw(0x8a, 8)
		e.b = binary.LittleEndian.AppendUint64(e.b, uint64(v))
	}
}

// big writes an int in two's complement, little-endian.
func (e *encoder) big(v *big.Int) error {
	if v.IsInt64() {
		e.int(v.Int64())
		return nil
	}
	size := v.BitLen()/8 + 1
	b := v
	if v.Sign() < 0 {
		b = new(big.Int).Add(v, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	if size <= math.MaxUint8 {
		e.raw(0x8a, byte(size))
	} else {
		e.raw(0x8b)
		e.b = binary.LittleEndian.AppendUint32(e.b, uint32(size))
	}
	at := len(e.b)
	e.b = append(e.b, b.FillBytes(make([]byte, size))...)
	slices.Reverse(e.b[at:])
	return nil
}

func (e *encoder) list(items []any, depth int) error {
	e.raw(']', '(')
	if err := e.items(items, depth); err != nil {
		return err
	}
	e.raw('e')
	return nil
}

func (e *encoder) tuple(items []any, depth int) error {
	if len(items) > 3 {
		e.raw('(')
	}
	if err := e.items(items, depth); err != nil {
		return err
	}
	e.raw([]byte{')', 0x85, 0x86, 0x87, 't'}[min(len(items), 4)])
	return nil
}

func (e *encoder) items(items []any, depth int) error {
	for i, item := range items {
		if err := e.value(item, depth+1); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

func (e *encoder) dict(d Dict, depth int) error {
	e.raw('}', '(')
	seen := map[string]bool{}
	for i, item := range d {
		if err := e.key(item.Key, seen, depth); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
		if err := e.value(item.Value, depth+1); err != nil {
			return fmt.Errorf("value of key %d: %w", i, err)
		}
	}
	e.raw('u')
	return nil
}

// key writes a key of a dict. It checks that Python can hash the value, and
// that the value occurs once, as it will be after decoding.
func (e *encoder) key(v any, seen map[string]bool, depth int) error {
	if err := e.value(v, depth+1); err != nil {
		return err
	}
	k := keyer{math.MaxInt}
	text, err := k.append(nil, v)
	if err != nil {
		return err
	}
	if seen[string(text)] {
		return fmt.Errorf("%v is there twice", v)
	}
	seen[string(text)] = true
	return nil
}
