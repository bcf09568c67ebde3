package tree_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tree"
	"github.com/muster-pg/muster/tensor"
)

type layer struct {
	Name   string
	Heads  int
	Weight *tensor.Tensor
	Scales map[string]*tensor.Tensor
}

func scalar(v float32) *tensor.Tensor { return tensor.From([]float32{v}) }

func split(t *testing.T, v any) (string, map[string]*tensor.Tensor) {
	t.Helper()
	config, tensors, err := tree.Split(v)
	require.NoError(t, err)
	require.True(t, json.Valid(config), "%s", config)
	return string(config), tensors
}

// again splits v and joins it into another of its type.
func again[T any](t *testing.T, v T) T {
	t.Helper()
	config, tensors := split(t, v)
	var back T
	require.NoError(t, tree.Join([]byte(config), tensors, &back), "%s", config)
	return back
}

func TestSplit(t *testing.T) {
	q, k := scalar(1), scalar(2)
	l := layer{Name: "attn", Heads: 8, Weight: q, Scales: map[string]*tensor.Tensor{"k": k, "a": nil}}
	config, tensors := split(t, []*layer{&l, nil})
	assert.Equal(t, `[{"Name":"attn","Heads":8,"Weight":{"$tensor":"0.Weight"},"Scales":{"a":null,"k":{"$tensor":"0.Scales.k"}}},null]`, config)
	require.Len(t, tensors, 2)
	assert.Same(t, q, tensors["0.Weight"])
	assert.Same(t, k, tensors["0.Scales.k"])

	var back []*layer
	require.NoError(t, tree.Join([]byte(config), tensors, &back))
	assert.Equal(t, []*layer{&l, nil}, back)
	assert.Same(t, q, back[0].Weight)
}

func TestTensorLeaves(t *testing.T) {
	type leaves struct {
		Pointer *tensor.Tensor
		Value   tensor.Tensor
		Zero    tensor.Tensor
		Nil     *tensor.Tensor
		Values  map[string]tensor.Tensor
		Deep    **tensor.Tensor
		Any     any
		Pair    [2]*tensor.Tensor
	}
	x := scalar(3)
	v := leaves{
		Pointer: x, Value: *x, Values: map[string]tensor.Tensor{"v": *x}, Deep: &x, Any: x,
		Pair: [2]*tensor.Tensor{x, nil},
	}
	config, tensors := split(t, v)
	assert.Len(t, tensors, 6) // each leaf has its own name
	back := again(t, v)
	assert.Equal(t, v, back)
	assert.Same(t, x, back.Pointer)
	assert.Same(t, &x.Data[0], &back.Value.Data[0])

	var untyped any
	require.NoError(t, tree.Join([]byte(config), tensors, &untyped))
	assert.Same(t, x, untyped.(map[string]any)["Pair"].([]any)[0])
	assert.Nil(t, untyped.(map[string]any)["Zero"])

	config, tensors = split(t, x)
	assert.Equal(t, `{"$tensor":"tensor"}`, config)
	var root tensor.Tensor
	require.NoError(t, tree.Join([]byte(config), tensors, &root))
	assert.Equal(t, *x, root)
}

// TestNames has no two leaves share a name, whatever their keys are.
func TestNames(t *testing.T) {
	x := scalar(1)
	v := map[string]any{
		"a.b": x, "a": map[string]any{"b": x, "": x, ".": x, "%": x, "%2E": x}, "a%2Eb": x, "": x, "%": x, "%25": x,
		"__metadata__": x, "%5F_metadata__": x, "0": x, "list": []any{x, x},
		"$tensor": x, "$$tensor": x, "ключ": x, "a\x00": x,
	}
	config, tensors := split(t, v)
	want := []string{
		"a%2Eb", "a.b", "a.%", "a.%2E", "a.%25", "a.%252E", "a%252Eb", "%", "%25", "%2525", "%5F_metadata__", "%255F_metadata__", "0", "list.0", "list.1",
		"$tensor", "$$tensor", "ключ", "a\x00",
	}
	var got []string
	for name := range tensors {
		got = append(got, name)
	}
	assert.ElementsMatch(t, want, got)
	var back any
	require.NoError(t, tree.Join([]byte(config), tensors, &back))
	assert.Equal(t, any(v), back)
}

// TestDollars has keys of users' that look like ours.
func TestDollars(t *testing.T) {
	for _, v := range []any{
		map[string]any{"$tensor": "w"},
		map[string]any{"$float": "NaN"},
		map[string]any{"$tensor": map[string]any{"$tensor": "w"}, "$": int64(1), "$$": int64(2)},
		map[string]any{"$$tensor": "w"},
	} {
		config, tensors := split(t, v)
		assert.Empty(t, tensors)
		var back any
		require.NoError(t, tree.Join([]byte(config), tensors, &back), config)
		assert.Equal(t, v, back)
	}
	typed := map[string]string{"$tensor": "w"}
	assert.Equal(t, typed, again(t, typed))
	field := struct {
		T string `json:"$tensor"`
	}{"w"}
	assert.Equal(t, field, again(t, field))

	// What methods of a type's own write is theirs, and only an interface needs it escaped.
	raw := json.RawMessage(`{"$ref":"#/a","$tensor":"w"}`)
	assert.Equal(t, raw, again(t, raw))
	config, _ := split(t, []any{raw})
	assert.Equal(t, `[{"$$ref":"#/a","$$tensor":"w"}]`, config)
	assert.Equal(t, []any{map[string]any{"$ref": "#/a", "$tensor": "w"}}, again(t, []any{raw}))
}

func TestFloats(t *testing.T) {
	type floats struct {
		A, B, C float64
		D       float32
	}
	v := floats{math.Inf(1), math.Inf(-1), math.Copysign(0, -1), float32(math.Inf(1))}
	config, _ := split(t, v)
	assert.Equal(t, `{"A":{"$float":"Infinity"},"B":{"$float":"-Infinity"},"C":-0.0,"D":{"$float":"Infinity"}}`, config)
	assert.Equal(t, v, again(t, v))
	assert.True(t, math.Signbit(again(t, v).C))
	assert.True(t, math.IsNaN(again(t, math.NaN())))
	assert.True(t, math.IsNaN(again(t, []any{math.NaN()})[0].(float64)))
	for _, f := range []float64{0, 3, 1e21, 1e-7, math.MaxFloat64, math.SmallestNonzeroFloat64, 0.1} {
		assert.Equal(t, []any{f}, again(t, []any{f}))
	}
}

func TestIntoAny(t *testing.T) {
	v := map[string]any{
		"int": 7, "small": uint8(7), "float": 7.0, "large": uint64(math.MaxUint64), "least": int64(math.MinInt64), "s": "é<\u2028", "b": true, "null": nil,
		"bytes": []byte{1, 2}, "list": []int{}, "map": map[int]bool{2: true}, "nil": []int(nil), "struct": layer{Name: "x"},
	}
	config, tensors := split(t, v)
	var back any
	require.NoError(t, tree.Join([]byte(config), tensors, &back))
	assert.Equal(t, map[string]any{
		"int": int64(7), "small": int64(7), "float": 7.0, "large": float64(math.MaxUint64), "least": int64(math.MinInt64), "s": "é<\u2028", "b": true, "null": nil,
		"bytes": "AQI=", "list": []any{}, "map": map[string]any{"2": true}, "nil": nil,
		"struct": map[string]any{"Name": "x", "Heads": int64(0), "Weight": nil, "Scales": nil},
	}, back)
}

type textKey struct{ A, B int }

func (k textKey) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d/%d", k.A, k.B), nil }
func (k *textKey) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%d/%d", &k.A, &k.B)
	return err
}

// pointerOwn has its methods on the pointer, which encoding/json forgets where there is none.
type pointerOwn struct{ n int }

func (p *pointerOwn) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{"$n": p.n}) }

func (p *pointerOwn) UnmarshalJSON(b []byte) error {
	m := map[string]int{}
	err := json.Unmarshal(b, &m)
	p.n = m["$n"]
	return err
}

func TestOwnMethods(t *testing.T) {
	type small uint8
	type own struct {
		Time    time.Time
		Addr    netip.Addr
		Big     *big.Int
		Number  json.Number
		Raw     json.RawMessage
		Own     pointerOwn
		Owns    map[textKey]pointerOwn
		Bytes   []byte
		Small   []small
		Array   [3]byte
		ByName  map[netip.Addr]int
		ByInt   map[int8]string
		Strings map[named]named
	}
	v := own{
		Time: time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC), Addr: netip.MustParseAddr("::1"),
		Big: big.NewInt(0).Lsh(big.NewInt(1), 100), Number: "1e5", Raw: json.RawMessage(`{"b":1,"a":["x"]}`), Own: pointerOwn{5},
		Owns: map[textKey]pointerOwn{{1, 2}: {3}, {4, 5}: {6}}, Bytes: []byte{0xff, 0}, Small: []small{1, 2}, Array: [3]byte{1, 2, 3},
		ByName: map[netip.Addr]int{netip.MustParseAddr("10.0.0.1"): 1}, ByInt: map[int8]string{-3: "x"}, Strings: map[named]named{"k": "v"},
	}
	assert.Equal(t, v, again(t, v))
	assert.Equal(t, &v, again(t, &v))
	config, _ := split(t, v.Owns)
	assert.Equal(t, `{"1/2":{"$n":3},"4/5":{"$n":6}}`, config)
}

type named string

func TestErrorType(t *testing.T) {
	_, _, err := tree.Split(map[string]any{"a": []any{1, make(chan int)}})
	var e *tree.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "a.1", e.Path)
	assert.EqualError(t, err, "tree: a.1: a chan int cannot be split")
}

type loop struct {
	Next *loop
	Any  any
	Kids []loop
	Map  map[string]*loop
}

type pointerLoop *pointerLoop

func TestCycles(t *testing.T) {
	byPointer := &loop{}
	byPointer.Next = byPointer
	byAny := map[string]any{}
	byAny["k"] = byAny
	bySlice := []any{nil}
	bySlice[0] = bySlice
	byKids := loop{Kids: make([]loop, 1)}
	byKids.Kids[0] = byKids
	byMap := &loop{Map: map[string]*loop{}}
	byMap.Map["m"] = byMap
	var p pointerLoop
	p = &p
	for _, v := range []any{byPointer, byAny, bySlice, byKids, byMap, p} {
		_, _, err := tree.Split(v)
		require.ErrorContains(t, err, "nested deeper than 1000: is it a cycle?")
		assert.Less(t, len(err.Error()), 300)
	}
	require.ErrorContains(t, tree.Join([]byte("1"), nil, &p), "nested deeper than 1000")
}

// TestDepth has all that Split makes be what Join takes.
func TestDepth(t *testing.T) {
	for _, n := range []int{998, 999, 1000, 1001} {
		var v, raw any = scalar(1), json.RawMessage(strings.Repeat("[", n) + strings.Repeat("]", n))
		for range n / 2 {
			v = []any{v} // an interface and a slice: two steps
		}
		for _, v := range []any{v, []any{raw}, []json.RawMessage{raw.(json.RawMessage)}} {
			config, tensors, err := tree.Split(v)
			if err != nil {
				assert.ErrorContains(t, err, "nested deeper than 1000")
				continue
			}
			var back any
			assert.NoError(t, tree.Join(config, tensors, &back))
		}
	}
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	var back any
	require.Error(t, tree.Join([]byte(deep), nil, &back))
	deep = strings.Repeat(`{"a":`, 1002) + "1" + strings.Repeat("}", 1002)
	require.ErrorContains(t, tree.Join([]byte(deep), nil, &back), "nested deeper than 1001")
}
