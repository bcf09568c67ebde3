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

func TestAppendRefuses(t *testing.T) {
	loop := []any{nil}
	loop[0] = loop
	type pair struct{ a, b int }
	for what, c := range map[string]struct {
		v    any
		says string
	}{
		"a struct":               {pair{1, 2}, "pickle_test.pair is no plain value: those are nil, "},
		"a map":                  {map[string]int{}, "map[string]int is no plain value"},
		"a number of 32 bits":    {int32(1), "int32 is no plain value"},
		"where in a list":        {[]any{1, []any{pair{}}}, "item 1: item 0: "},
		"where in a tuple":       {pickle.Tuple{1, func() {}}, "item 1: "},
		"where in a dict":        {pickle.Dict{{1, 1i}}, "value of key 0: "},
		"a list that has itself": {loop, "more than 1000 deep, or one holds itself"},
		"a str that is no text":  {"\xff", "make it []byte"},
		"a list as a key":        {pickle.Dict{{[]any{}, 1}}, "key 0: a list cannot be a key"},
		"a struct as a key":      {pickle.Dict{{pair{}, 1}}, "key 0: "},
		"NaN as a key":           {pickle.Dict{{math.NaN(), 1}}, "NaN cannot be a key"},
		"a key twice":            {pickle.Dict{{1, 1}, {1.0, 2}}, "key 1: 1 is there twice"},
		"a key twice, large":     {pickle.Dict{{int64(5), 1}, {big.NewInt(5), 2}}, "key 1: 5 is there twice"},
		"a ncclUniqueId as key":  {pickle.Dict{{pickle.NcclUniqueID{}, 1}}, "a ncclUniqueId cannot be a key"},
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
