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

// through writes v, and reads it into a T.
func through[T any](v any) (T, error) {
	var got T
	b, err := pickle.Codec.Append(nil, v)
	if err == nil {
		err = pickle.Codec.Parse(b, &got)
	}
	return got, err
}

func fits[T any](t *testing.T, v any, want T) {
	t.Helper()
	got, err := through[T](v)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestFits(t *testing.T) {
	w := tensor.From([]float32{1, 2})
	one := 1
	fits[any](t, 1, int64(1))
	fits[any](t, nil, nil)
	fits(t, 1, 1)
	fits(t, -128, int8(-128))
	fits(t, 255, uint8(255))
	fits(t, uint64(1<<63), uint64(1<<63))
	fits(t, 1.5, 1.5)
	fits(t, 1.5, float32(1.5))
	fits(t, 3, 3.0)
	fits(t, true, true)
	fits(t, "s", "s")
	fits(t, "s", name("s"))
	fits(t, 1, &one)
	fits[*int](t, nil, nil)
	fits[[]int](t, nil, nil)
	fits[map[string]int](t, nil, nil)
	fits(t, 5, big.NewInt(5))
	fits(t, power(70, 0), power(70, 0))
	fits(t, []int{1, 2}, []int{1, 2})
	fits(t, pickle.Tuple{1, 2}, []int{1, 2})
	fits(t, pickle.Tuple{1, 2}, [2]int{1, 2})
	fits(t, pickle.Tuple{1, "a"}, pickle.Tuple{int64(1), "a"})
	fits(t, pickle.Tuple{1, "a"}, []any{int64(1), "a"})
	fits(t, []byte("b"), []byte("b"))
	fits(t, []byte("b"), pickle.ByteArray("b"))
	fits(t, pickle.ByteArray("b"), []byte("b"))
	fits(t, []byte("abcd"), id{'a', 'b', 'c', 'd'})
	fits(t, pickle.ByteArray("ab"), digits("ab"))
	fits(t, pickle.NcclUniqueID{1}, pickle.NcclUniqueID{1})
	fits(t, pickle.NcclUniqueID{1}, [128]byte{1})
	fits(t, pickle.NcclUniqueID{1}, append([]byte{1}, make([]byte, 127)...))
	fits(t, map[string][]int{"a": {1}}, map[string][]int{"a": {1}})
	fits(t, scores{"a": 1}, scores{"a": 1})
	fits(t, map[any]any{"a": 1}, map[any]any{"a": int64(1)})
	fits(t, w, w)
	fits(t, pickle.Array{Tensor: w}, pickle.Array{Tensor: w})
	fits(t, pickle.Array{Tensor: w}, w)
	fits(t, []any{w}, []*tensor.Tensor{w})
}

func TestDoesNotFit(t *testing.T) {
	refuse := func(v, to any, says string) {
		t.Helper()
		b, err := pickle.Append(nil, v)
		require.NoError(t, err)
		require.ErrorContains(t, pickle.Codec.Parse(b, to), says)
	}
	refuse(256, new(uint8), "int does not fit into uint8")
	refuse(-1, new(uint), "into uint")
	refuse(1.5, new(int), "float does not fit into int")
	refuse(1, new(bool), "into bool")
	refuse(1, new(string), "into string")
	refuse([]byte("b"), new(string), "bytes does not fit into string")
	refuse("s", new([]byte), "str does not fit into []uint8")
	refuse("s", new(float64), "into float64")
	refuse("s", new(uint), "into uint")
	refuse(0.1, new(float32), "float 0.1 does not fit into float32")
	refuse(int64(1<<53+1), new(float64), "int does not fit")
	refuse(int64(1<<62+1), new(float32), "int does not fit")
	refuse(nil, new(int), "None does not fit into int")
	refuse("s", new(*big.Int), "into *big.Int")
	refuse("s", new(*tensor.Tensor), "into *tensor.Tensor")
	refuse("s", new(*int), "into int")
	refuse([]int{1, 2}, new([3]int), "2 items do not fit into [3]int")
	refuse([]byte("abc"), new(id), "3 items do not fit")
	refuse([]byte("abc"), new([]int), "into []int")
	refuse([]any{1, "x"}, new([]int), "item 1: str does not fit")
	refuse([]int{1}, new(map[int]int), "list does not fit into map[int]int")
	refuse(map[string]int{"a": 1}, new(map[int]int), "key 0: ")
	refuse(map[string]string{"a": "x"}, new(map[string]int), "value of key 0: ")
	refuse(pickle.Dict{{pickle.Tuple{1}, 1}}, new(map[any]any), "a tuple is no key of a map of Go")
	refuse(map[string]int{"a": 1}, new(struct{ A int }), "dict does not fit into struct")
	refuse(1, new(error), "int does not fit into error")
	for kind, v := range map[string]any{
		"bool": true, "bytearray": pickle.ByteArray{}, "dict": pickle.Dict{},
		"tuple": pickle.Tuple{}, "numpy.ndarray": pickle.Array{Tensor: tensor.New(tensor.U8)}, "torch.Tensor": tensor.New(tensor.U8),
		"ncclUniqueId": pickle.NcclUniqueID{}, "int": power(80, 0),
	} {
		refuse(v, new(chan int), kind+" does not fit into chan int")
	}
}

func TestParseIntoNothing(t *testing.T) {
	for _, to := range []any{nil, 1, (*int)(nil)} {
		require.ErrorContains(t, pickle.Codec.Parse([]byte("N."), to), "a pointer is needed")
	}
	require.ErrorIs(t, pickle.Codec.Parse([]byte("cos\nsystem\n."), new(any)), pickle.ErrRefused)
	_, err := pickle.Codec.Append(nil, make(chan int))
	require.Error(t, err)
}

// FuzzParse checks that any input is a value or an error, and that a value has an encoding that
// parses to it again, and can be read into any type.
func FuzzParse(f *testing.F) {
	for _, file := range goldenFiles {
		for _, g := range goldens(f, file) {
			if len(g.b) < 1000 {
				f.Add(g.b)
			}
		}
	}
	f.Add([]byte("]q\x00h\x00a."))
	f.Add([]byte(torchSaved(floatStorage, "].\x02\x00\x00\x00\x00\x00\x00\x0012345678") + "."))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := pickle.Parse(b)
		if err != nil {
			return
		}
		for _, to := range []any{new([]map[int]string), new([4]byte), new(map[string]any), new([]float32), new(*tensor.Tensor)} {
			_ = pickle.Codec.Parse(b, to)
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
