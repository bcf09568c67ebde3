package pickle_test

import (
	"errors"
	"math/big"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// parseInto writes v, and reads it into a T.
func parseInto[T any](v any) (got T, err error) {
	b, err := pickle.Append(nil, v)
	if err == nil {
		err = pickle.ParseInto(b, &got)
	}
	return got, err
}

// fits checks that v is read into a T as want.
func fits[T any](t *testing.T, v any, want T) {
	t.Helper()
	got, err := parseInto[T](v)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// refuses checks that v does not fit into a T.
func refuses[T any](t *testing.T, v any, says string) {
	t.Helper()
	got, err := parseInto[T](v)
	require.EqualError(t, err, "pickle: Python's "+says)
	require.Zero(t, got)
}

func TestParseInto(t *testing.T) {
	w := tensor.From([]float32{1, 2})
	fits[any](t, 1, int64(1))
	fits[any](t, nil, nil)
	fits(t, 1, 1)
	fits(t, 1, int64(1))
	fits(t, power(70, 0), power(70, 0))
	fits(t, big.NewInt(5), 5)
	fits[[]any](t, nil, nil)
	fits(t, pickle.Tuple{1, "a"}, []any{int64(1), "a"})
	fits(t, pickle.ByteArray("b"), []byte("b"))
	fits(t, pickle.NcclUniqueID{1}, pickle.NcclUniqueID{1})
	fits(t, pickle.Array{Tensor: w}, pickle.Array{Tensor: w})
	fits(t, w, w)
	fits[*tensor.Tensor](t, nil, nil)

	refuses[int](t, power(70, 0), "int does not fit into int")
	refuses[int](t, 1.5, "float does not fit into int")
	refuses[int](t, nil, "None does not fit into int")
	refuses[float64](t, 1, "int does not fit into float64")
	refuses[string](t, []byte("b"), "bytes does not fit into string")
	refuses[[]int](t, []any{1}, "list does not fit into []int")
	refuses[map[string]int](t, pickle.Dict{}, "dict does not fit into map[string]int")
	refuses[*tensor.Tensor](t, pickle.Array{Tensor: w}, "numpy.ndarray does not fit into *tensor.Tensor")
	for kind, v := range map[string]any{
		"bool": true, "bytearray": pickle.ByteArray{}, "tuple": pickle.Tuple{}, "str": "s",
		"torch.Tensor": w, "ncclUniqueId": pickle.NcclUniqueID{},
	} {
		refuses[error](t, v, kind+" does not fit into error")
	}
	require.ErrorIs(t, pickle.ParseInto([]byte("cos\nsystem\n."), new(any)), pickle.ErrRefused)
}

// FuzzParse checks that any input is a value or an error, and that a value has an encoding that
// parses to it again.
func FuzzParse(f *testing.F) {
	for _, file := range goldenFiles {
		for _, g := range goldens(f, file) {
			if len(g.b) < 1000 {
				f.Add(g.b)
			}
		}
	}
	f.Add([]byte("]q\x00h\x00a."))
	f.Add([]byte(torchSaved("") + "."))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := pickle.Parse(b)
		if err != nil {
			return
		}
		out, err := pickle.Append(nil, v)
		require.NoError(t, err, "%q gave %#v, which cannot be written", b, v)
		again, err := pickle.Parse(out)
		if errors.Is(err, pickle.ErrTooLarge) {
			return // written out, shared values take more
		}
		require.NoError(t, err, "%q gave %#v, whose bytes %q cannot be read", b, v, out)
		once, err := pickle.Append(nil, again)
		if err != nil || string(once) != string(out) {
			t.Fatalf("%#v has other bytes the second time: %q, then %q", v, out, once)
		}
	})
}

// FuzzTensors checks that any tensor is the same after a round trip.
func FuzzTensors(f *testing.F) {
	f.Add(uint8(tensor.F32), 2, 3, []byte("abcdefghijklmnopqrstuvwx"), true)
	f.Add(uint8(tensor.U64), 0, 3, []byte(nil), false)
	f.Fuzz(func(t *testing.T, kind uint8, rows, columns int, data []byte, numpy bool) {
		w, err := tensor.Wrap(data, tensor.DType(kind), rows, columns)
		if err != nil {
			return
		}
		var v any = w
		if numpy {
			v = pickle.Array{Tensor: w}
		}
		b, err := pickle.Append(nil, v)
		if err != nil {
			return // an unknown dtype
		}
		got, err := pickle.Parse(b)
		require.NoError(t, err)
		if a, ok := got.(pickle.Array); ok {
			got = a.Tensor
		}
		if !tensor.Equal(w, got.(*tensor.Tensor)) || reflect.TypeOf(v) == reflect.TypeFor[*tensor.Tensor]() == numpy {
			t.Fatalf("%v came as %v", v, got)
		}
	})
}
