package etcdlog_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// registerInput is an operation on a key: get, set, add or swap.
type registerInput struct {
	key     string
	op, arg int
}

type registerOutput struct {
	value   string // the value got, the counter, or the value that a swap found or set; "" is none
	unknown bool
}

// do makes the operation, and reports whether it may have taken effect.
func (in registerInput) do(ctx context.Context, s *store.Store) (out registerOutput, happened bool) {
	var err error
	var v []byte
	switch in.op {
	case 0:
		if v, err = s.Get(ctx, in.key); err != nil && !errors.Is(err, store.ErrNotFound) {
			return out, false
		}
	case 1:
		err = s.Set(ctx, in.key, []byte(strconv.Itoa(in.arg)), nil)
	case 2:
		var n int64
		n, err = s.Add(ctx, in.key, int64(in.arg))
		v = strconv.AppendInt(nil, n, 10)
	case 3:
		v, err = s.Swap(ctx, in.key, []byte(strconv.Itoa(in.arg)), []byte(strconv.Itoa(in.arg+1)))
	}
	switch {
	case errors.Is(err, store.ErrUnknown):
		return registerOutput{unknown: true}, true
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrConflict), err == nil:
		return registerOutput{value: string(v)}, true
	}
	return out, false
}

// register is the model of a key: its value, or "" if it has none.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(registerInput).key
			keys[key] = append(keys[key], op)
		}
		var parts [][]porcupine.Operation
		for _, p := range keys {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		was, in, out := state.(string), input.(registerInput), output.(registerOutput)
		now, says := in.step(was)
		return out.unknown || says == out.value, now
	},
	Equal: func(a, b any) bool { return a == b },
}

// step returns the value after an operation on the value was, and the result of the operation.
// Values are numbers; "" is no value.
func (in registerInput) step(was string) (now, says string) {
	switch in.op {
	case 0:
		return was, was
	case 1:
		return strconv.Itoa(in.arg), ""
	case 2:
		n, _ := strconv.Atoi(was)
		now = fmt.Sprint(n + in.arg)
		return now, now
	}
	if was == strconv.Itoa(in.arg) {
		now = strconv.Itoa(in.arg + 1)
		return now, now
	}
	return was, was
}

// TestRegister checks that the checker finds histories that are not linearizable. Otherwise its
// success would prove nothing.
func TestRegister(t *testing.T) {
	op := func(call, ret int64, op, arg int, value string, unknown bool) porcupine.Operation {
		return porcupine.Operation{Input: registerInput{"key", op, arg}, Call: call, Return: ret, Output: registerOutput{value, unknown}}
	}
	set := op(0, 1, 1, 5, "", false)
	for name, x := range map[string]struct {
		history []porcupine.Operation
		fine    bool
	}{
		"a read of what was set":        {[]porcupine.Operation{set, op(2, 3, 0, 0, "5", false)}, true},
		"a stale read":                  {[]porcupine.Operation{set, op(2, 3, 0, 0, "", false)}, false},
		"an add that counts twice":      {[]porcupine.Operation{set, op(2, 3, 2, 1, "7", false)}, false},
		"a swap of something else":      {[]porcupine.Operation{set, op(2, 3, 3, 4, "5", false), op(4, 5, 0, 0, "5", false)}, true},
		"an unknown add that happened":  {[]porcupine.Operation{set, op(2, 100, 2, 1, "", true), op(4, 5, 0, 0, "6", false)}, true},
		"an unknown add that is undone": {[]porcupine.Operation{set, op(2, 100, 2, 1, "", true), op(4, 5, 0, 0, "6", false), op(6, 7, 0, 0, "5", false)}, false},
	} {
		require.Equal(t, x.fine, porcupine.CheckOperations(register, x.history), name)
	}
}
