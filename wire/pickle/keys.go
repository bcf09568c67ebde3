package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
)

// key is the text that is the same for values that are one key in Python.
func (m *machine) key(v any) (string, error) {
	key, err := m.finish(v)
	if err != nil {
		return "", err
	}
	b, err := appendKey(nil, key, *m.room)
	if errors.Is(err, ErrTooLarge) {
		return "", m.fail(ErrTooLarge, "%v", err)
	}
	if err != nil {
		return "", m.malformed("%v", err)
	}
	return string(b), m.spend(2 * len(b))
}

// appendKey appends what identifies a key of a dict or a member of a set: b may become room bytes.
func appendKey(b []byte, v any, room int) ([]byte, error) {
	if len(b) > room {
		return b, fmt.Errorf("a key of more than %d bytes: %w", room, ErrTooLarge)
	}
	switch v := v.(type) {
	case nil:
		return append(b, 'n'), nil
	case bool:
		if v {
			return appendIntKey(b, 1), nil
		}
		return appendIntKey(b, 0), nil
	case int64:
		return appendIntKey(b, v), nil
	case *big.Int:
		return appendSizedKey(append(b, 'l', byte(v.Sign()+1)), string(v.Bytes())), nil
	case float64:
		return appendFloatKey(b, v)
	case string:
		return appendSizedKey(append(b, 's'), v), nil
	case []byte:
		return appendSizedKey(append(b, 'b'), string(v)), nil
	case Tuple:
		return appendKeys(append(b, 't'), v, room)
	case FrozenSet:
		return appendSetKey(append(b, 'f'), v, room)
	}
	return b, fmt.Errorf("a %s cannot be a key", kind(v))
}

func appendIntKey(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
}

func appendSizedKey(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendFloatKey makes whole floats the keys that ints of their value are.
func appendFloatKey(b []byte, v float64) ([]byte, error) {
	switch {
	case math.IsNaN(v):
		return b, errors.New("NaN cannot be a key: it does not equal itself")
	case v != math.Trunc(v) || math.IsInf(v, 0):
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v)), nil
	}
	whole, _ := big.NewFloat(v).Int(nil)
	return appendKey(b, integer(whole), math.MaxInt)
}

func appendKeys(b []byte, items []any, room int) (_ []byte, err error) {
	b = binary.AppendUvarint(b, uint64(len(items)))
	for _, item := range items {
		if b, err = appendKey(b, item, room); err != nil {
			return b, err
		}
	}
	return b, nil
}

// appendSetKey does not depend on the order.
func appendSetKey(b []byte, items []any, room int) ([]byte, error) {
	keys := make([]string, 0, len(items))
	for _, item := range items {
		key, err := appendKey(nil, item, room)
		if err != nil {
			return b, err
		}
		keys = append(keys, string(key))
		room -= len(key)
	}
	slices.Sort(keys)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, key := range keys {
		b = appendSizedKey(b, key)
	}
	return b, nil
}
