package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
)

// key returns a text that is equal for values that are the same key in Python.
func (m *machine) key(v any) (string, error) {
	key, err := m.finish(v)
	if err != nil {
		return "", err
	}
	if _, ok := key.(*Object); ok {
		return m.objectKey(), m.spend(keySize)
	}
	k := keyer{*m.room}
	b, err := k.append(nil, key)
	*m.room = k.room
	if errors.Is(err, ErrTooLarge) {
		return "", m.fail(ErrTooLarge, "%v", err)
	}
	if err != nil {
		return "", m.malformed("%v", err)
	}
	return string(b), m.spend(len(b))
}

// keyer makes texts of keys. room is the number of bytes that they may still take: a tuple may be in many
// places of another one.
type keyer struct{ room int }

func (k *keyer) spend(n int) error {
	if n > k.room {
		return fmt.Errorf("a key needs too many bytes: %w", ErrTooLarge)
	}
	k.room -= n
	return nil
}

// append appends the text of a key of a dict.
func (k *keyer) append(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(b, 'n'), k.spend(1)
	case bool:
		n := int64(0)
		if v {
			n = 1
		}
		return appendIntKey(b, n), k.spend(9)
	case int:
		return appendIntKey(b, int64(v)), k.spend(9)
	case int64:
		return appendIntKey(b, v), k.spend(9)
	case *big.Int:
		if v.IsInt64() {
			return appendIntKey(b, v.Int64()), k.spend(9)
		}
		return k.sized(append(b, 'l', byte(v.Sign()+1)), string(v.Bytes()))
	case float64:
		return k.float(b, v)
	case string:
		return k.sized(append(b, 's'), v)
	case []byte:
		return k.sized(append(b, 'b'), string(v))
	case Tuple:
		return k.tuple(b, v)
	}
	return b, fmt.Errorf("a %s cannot be a key", kind(v))
}

func appendIntKey(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 'i'), uint64(v))
}

func (k *keyer) sized(b []byte, s string) ([]byte, error) {
	if err := k.spend(len(s) + 1); err != nil {
		return b, err
	}
	return append(binary.AppendUvarint(b, uint64(len(s))), s...), nil
}

// float appends the text of the equal int if the float is a whole number.
func (k *keyer) float(b []byte, v float64) ([]byte, error) {
	switch {
	case math.IsNaN(v):
		return b, errors.New("NaN cannot be a key: it does not equal itself")
	case v != math.Trunc(v) || math.IsInf(v, 0):
		return binary.BigEndian.AppendUint64(append(b, 'd'), math.Float64bits(v)), k.spend(9)
	}
	whole, _ := big.NewFloat(v).Int(nil)
	return k.append(b, whole)
}

func (k *keyer) tuple(b []byte, items []any) (_ []byte, err error) {
	b = binary.AppendUvarint(append(b, 't'), uint64(len(items)))
	for _, item := range items {
		if b, err = k.append(b, item); err != nil {
			return b, err
		}
	}
	return b, k.spend(2)
}
