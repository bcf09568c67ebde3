package pickle_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

func bytesTensor(b []byte) *tensor.Tensor { return tensor.From(b) }

type (
	name   string
	id     [4]byte
	scores map[name]float32
	digits []uint8
)

// TestOtherTypes checks that values of named types are written as their underlying values.
func TestOtherTypes(t *testing.T) {
	seven := 7
	var none *int
	for _, c := range []struct{ v, want any }{
		{7, int64(7)},
		{int8(-7), int64(-7)},
		{uint16(7), int64(7)},
		{uint64(math.MaxUint64), power(64, -1)},
		{float32(0.5), 0.5},
		{name("n"), "n"},
		{id{1, 2, 3, 4}, []byte{1, 2, 3, 4}},
		{digits{1, 2}, []byte{1, 2}},
		{[]string{"a", "b"}, []any{"a", "b"}},
		{[2]bool{true, false}, []any{true, false}},
		{[]string(nil), []any{}},
		{[]byte(nil), []byte{}},
		{[]any(nil), []any{}},
		{map[string]int(nil), pickle.Dict{}},
		{scores{"b": 2, "a": 1}, pickle.Dict{{"a", 1.0}, {"b", 2.0}}},
		{map[int]any{3: nil, 1: []int{2}}, pickle.Dict{{int64(1), ints(2)}, {int64(3), nil}}},
		{&seven, int64(7)},
		{none, nil},
		{(*big.Int)(nil), nil},
		{(*tensor.Tensor)(nil), nil},
		{big.NewInt(5), int64(5)},
		{map[pickle.NcclUniqueID]int(nil), pickle.Dict{}},
	} {
		b, err := pickle.Append(nil, c.v)
		require.NoError(t, err, "%T", c.v)
		got, err := pickle.Parse(b)
		require.NoError(t, err)
		require.Equal(t, c.want, got, "%T", c.v)
	}
}

func TestMapsHaveOneOrder(t *testing.T) {
	m := map[int]int{}
	for i := range 100 {
		m[i*7919%1000] = i
	}
	first, err := pickle.Append(nil, m)
	require.NoError(t, err)
	for range 20 {
		again, err := pickle.Append(nil, m)
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
}

func TestAppendRefuses(t *testing.T) {
	loop := []any{nil}
	loop[0] = loop
	type pair struct{ a, b int }
	for what, c := range map[string]struct {
		v    any
		says string
	}{
		"a struct":               {pair{1, 2}, "pickle_test.pair is no plain value"},
		"a channel":              {make(chan int), "chan int is no plain value"},
		"a function":             {func() {}, "func() is no plain value"},
		"a complex":              {1i, "complex128 is no plain value"},
		"where in a list":        {[]any{1, []any{pair{}}}, "item 1: item 0: "},
		"where in a tuple":       {pickle.Tuple{1, func() {}}, "item 1: "},
		"where in a slice":       {[]func(){nil}, "item 0: "},
		"where in a dict":        {pickle.Dict{{1, 1i}}, "value of key 0: "},
		"where in a map":         {map[string]any{"k": 1i}, "value of key k: "},
		"a list that has itself": {loop, "more than 1000 deep, or one holds itself"},
		"a str that is no text":  {"\xff", "make it []byte"},
		"a list as a key":        {pickle.Dict{{[]any{}, 1}}, "key 0: a list cannot be a key"},
		"a struct as a key":      {pickle.Dict{{pair{}, 1}}, "key 0: "},
		"NaN as a key":           {pickle.Dict{{math.NaN(), 1}}, "NaN cannot be a key"},
		"a key twice":            {pickle.Dict{{1, 1}, {1.0, 2}}, "key 1: 1 is there twice"},
		"a map of arrays":        {map[pickle.NcclUniqueID]int{{}: 1}, "a ncclUniqueId cannot be a key"},
		"a map of structs":       {map[pair]int{{}: 1}, "key {0 0}"},
		"an array of bfloat16":   {pickle.Array{Tensor: tensor.New(tensor.BF16, 1)}, "numpy has no BF16"},
		"a tensor of float4":     {tensor.New(tensor.F4, 2), "torch has no F4"},
		"an array of nothing":    {pickle.Array{}, "tensor: nil"},
		"a tensor put together":  {&tensor.Tensor{DType: tensor.F32, Shape: []int{2}}, "has 8 bytes, not 0"},
		"an array put together":  {pickle.Array{Tensor: &tensor.Tensor{}}, "not a dtype"},
		"too many axes":          {tensor.New(tensor.U8, make([]int, 65)...), "65 axes, the limit is 64"},
		"too many axes of numpy": {pickle.Array{Tensor: tensor.New(tensor.U8, make([]int, 65)...)}, "65 axes, the limit is 64"},
	} {
		b, err := pickle.Append([]byte("front"), c.v)
		require.ErrorContains(t, err, c.says, what)
		require.ErrorContains(t, err, "pickle: ", what)
		require.Equal(t, "front", string(b), what)
	}
}

func TestGet(t *testing.T) {
	d := pickle.Dict{{int64(1), "one"}, {"two", 2}}
	v, ok := d.Get("two")
	require.True(t, ok)
	require.Equal(t, 2, v)
	_, ok = d.Get("1")
	require.False(t, ok)
}
