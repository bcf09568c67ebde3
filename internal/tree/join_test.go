package tree_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tree"
	"github.com/muster-pg/muster/tensor"
)

type target struct {
	N      uint8
	F      float32
	S      string
	B      bool
	W      *tensor.Tensor
	List   []int
	Pair   [2]int
	M      map[int]string
	Chan   chan int
	Bytes  []byte
	Reader io.Reader
	Own    marshaler
	Time   time.Time
	Any    any
	In     *target
}

func TestJoinErrors(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{``, "tree: unexpected end of JSON input"},
		{`{`, "tree: unexpected end of JSON input"},
		{`{} {}`, "tree: invalid character '{' after top-level value"},
		{`{"S":"` + "\xff" + `"}`, "tree: the JSON is not UTF-8"},
		{`[]`, "tree: [] is no tree_test.target"},
		{`null`, "tree: null is no tree_test.target"},
		{`{"In":{"n":1}}`, "tree: In.n: tree_test.target has no such field"},
		{`{"N":1,"N":1}`, `tree: the key "N" is there twice`},
		{`{"Any":{"x":[{"a":1,"\u0061":1}]}}`, `tree: Any.x.0: the key "a" is there twice`},
		{`{"N":256}`, "tree: N: json: cannot unmarshal number 256 into Go value of type uint8"},
		{`{"N":1.5}`, "tree: N: json: cannot unmarshal number 1.5"},
		{`{"N":"1"}`, `tree: N: "1" is no uint8`},
		{`{"N":null}`, "tree: N: null is no uint8"},
		{`{"S":1}`, "tree: S: 1 is no string"},
		{`{"B":0}`, "tree: B: 0 is no bool"},
		{`{"F":1e39}`, "tree: F: json: cannot unmarshal number 1e39"},
		{`{"F":{"$float":"nan"}}`, `tree: F: "nan" is no float: want NaN, Infinity or -Infinity`},
		{`{"F":{"$float":1}}`, "is no float32"},
		{`{"N":{"$float":"NaN"}}`, "is no uint8"},
		{`{"List":{}}`, "tree: List: {} is no []int"},
		{`{"List":[1,"x"]}`, `tree: List.1: "x" is no int`},
		{`{"Pair":[1]}`, "tree: Pair: 1 elements are no [2]int"},
		{`{"M":[]}`, "tree: M: [] is no map[int]string"},
		{`{"M":{"x":"y"}}`, "tree: M.x: json: cannot unmarshal number x"},
		{`{"M":{"1":"y","01":"z"}}`, "tree: M.01: the map has this key already"},
		{`{"Chan":1}`, "tree: Chan: a chan int cannot be joined"},
		{`{"Bytes":"?"}`, "tree: Bytes: illegal base64"},
		{`{"Bytes":[1,2]}`, "tree: Bytes: [1,2] is no []uint8"},
		{`{"Own":{"W":null}}`, "tree: Own: tree_test.marshaler has a method of its own for JSON or text, which does not join its tensors"},
		{`{"Time":"x"}`, "tree: Time: parsing time"},
		{`{"Reader":1}`, "tree: Reader: which type of a io.Reader it was, JSON does not say"},
		{`{"Any":1e999}`, "tree: Any: 1e999 is too large for a number"},
		{`{"Any":{"$tensor":"w"},"W":{"$tensor":"v"}}`, `tree: W: the tensor "v" is missing`},
		{`{"Any":{"$tensor":"w","x":1}}`, `tree: Any: "$tensor" is no key here`},
		{`{"Any":{"$ref":"w"}}`, `tree: Any: "$ref" is no key here: one of a user's own that begins with $ is written with one more`},
		{`{"Any":{"$tensor":1}}`, `tree: Any: "$tensor" is no key here`},
		{`{"W":{}}`, "tree: W: {} is no tensor"},
		{`{"W":"w"}`, `tree: W: "w" is no tensor`},
		{`{"W":{"$tensor":"broken"}}`, `tree: W: the tensor "broken": tensor: F32 of shape [1] has 4 bytes, not 0`},
		{`{"W":{"$tensor":"nil"}}`, `tree: W: the tensor "nil": tensor: nil`},
		{`{"S":{"$tensor":"w"}}`, `is no string`},
	} {
		tensors := map[string]*tensor.Tensor{
			"w": scalar(1), "nil": nil, "broken": {DType: tensor.F32, Shape: []int{1}},
		}
		v := target{S: "before"}
		err := tree.Join([]byte(tc.config), tensors, &v)
		assert.ErrorContains(t, err, tc.want, tc.config)
		assert.Equal(t, target{S: "before"}, v, tc.config)
	}
}

func TestJoinUnused(t *testing.T) {
	tensors := map[string]*tensor.Tensor{"w": scalar(1), "x.y": scalar(2), "a": scalar(3)}
	var v target
	err := tree.Join([]byte(`{"W":{"$tensor":"w"}}`), tensors, &v)
	require.EqualError(t, err, "tree: a: the config has no place for this tensor (2 such of 3)")
	assert.Zero(t, v)
}

func TestJoinInto(t *testing.T) {
	v := target{}
	for _, into := range []any{nil, v, (*target)(nil), "x", map[string]any{}} {
		err := tree.Join([]byte(`{}`), nil, into)
		assert.ErrorContains(t, err, "tree: join into a pointer, not into")
	}
	full := target{S: "before", In: &target{}}
	require.NoError(t, tree.Join([]byte(` {"N" : 3 , "Reader":null} `), nil, &full))
	assert.Equal(t, target{N: 3}, full)

	var tied []*tensor.Tensor // by hand: Split gives each leaf a separate name
	w := scalar(1)
	require.NoError(t, tree.Join([]byte(`[{"$tensor":"w"},{"$tensor":"w"}]`), map[string]*tensor.Tensor{"w": w}, &tied))
	assert.Equal(t, []*tensor.Tensor{w, w}, tied)
	assert.Same(t, tied[0], tied[1])
}

// A config is one of every kind, nested.
type config struct {
	I     int64
	U     uint64 `json:"$u"`
	F     float64
	F32   float32 `json:"f.32"`
	S     string
	Bytes []byte
	W     *tensor.Tensor
	V     tensor.Tensor
	Kids  []config
	Next  *config
	Map   map[string]*config
	ByInt map[int]*tensor.Tensor
	Pair  [2]*tensor.Tensor
	Any   any
}

type maker struct{ *rand.Rand }

func (m maker) text() string {
	const letters = "a.%$_\"\\<é\u2028\x00🙂"
	runes := []rune(letters)
	out := make([]rune, m.IntN(5))
	for i := range out {
		out[i] = runes[m.IntN(len(runes))]
	}
	return []string{string(out), "$tensor", "$float", "__metadata__"}[max(0, m.IntN(12)-8)]
}

func (m maker) tensor() *tensor.Tensor {
	if m.IntN(3) == 0 {
		return nil
	}
	x := tensor.New(tensor.DType(1+m.IntN(int(tensor.U64))), m.IntN(3), 4)
	for i := range x.Data {
		x.Data[i] = byte(m.Uint32())
	}
	return x
}

func (m maker) float() float64 {
	return []float64{0, 1, -2.5, math.Inf(1), math.Inf(-1), 1e300, m.NormFloat64(), math.Copysign(0, -1)}[m.IntN(8)]
}

func (m maker) any(depth int) any {
	switch n := m.IntN(9); {
	case n == 0:
		return nil
	case n == 1:
		return m.text()
	case n == 2:
		return int64(m.Uint64())
	case n == 3:
		return m.float()
	case n == 4:
		return m.IntN(2) == 0
	case n == 5:
		if x := m.tensor(); x != nil {
			return x
		}
		return nil
	case depth == 0:
		return []any{}
	case n == 6:
		return []any{m.any(depth - 1), m.any(depth - 1)}
	}
	object := map[string]any{}
	for range m.IntN(4) {
		object[m.text()] = m.any(depth - 1)
	}
	return object
}

func (m maker) config(depth int) config {
	c := config{
		I: int64(m.Uint64()), U: m.Uint64() >> m.IntN(16), F: m.float(), F32: float32(m.float()), S: m.text(), W: m.tensor(), Any: m.any(depth),
		Pair: [2]*tensor.Tensor{m.tensor(), m.tensor()},
	}
	if x := m.tensor(); x != nil {
		c.V, c.Bytes = *x, []byte(m.text())
	}
	if m.IntN(2) == 0 {
		c.ByInt = map[int]*tensor.Tensor{m.Int(): m.tensor(), -m.Int(): m.tensor()}
	}
	if depth == 0 {
		return c
	}
	for range m.IntN(3) {
		c.Kids = append(c.Kids, m.config(depth-1))
	}
	if m.IntN(2) == 0 {
		next := m.config(depth - 1)
		c.Next = &next
		c.Map = map[string]*config{m.text(): nil, m.text(): c.Next}
	}
	return c
}

// TestRoundTrip has random configs survive, twice in the same bytes, and their shape survive the way through an any.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		c := maker{rand.New(rand.NewPCG(seed, 0))}.config(3)
		text, tensors := split(t, c)
		twice, _ := split(t, c)
		require.Equal(t, text, twice)
		var back config
		require.NoError(t, tree.Join([]byte(text), tensors, &back), "seed %d: %s", seed, text)
		require.Equal(t, c, back, "seed %d: %s", seed, text)
		anew, _ := split(t, back)
		require.Equal(t, text, anew)

		var untyped any
		require.NoError(t, tree.Join([]byte(text), tensors, &untyped))
		text, same := split(t, untyped)
		require.Equal(t, tensors, same)
		var typed config
		if c.hasLargeUint() {
			continue // under an any it is a float64
		}
		require.NoError(t, tree.Join([]byte(text), same, &typed), "seed %d: %s", seed, text)
		require.Equal(t, c, typed, "seed %d: %s", seed, text)
	}
}

func (c *config) hasLargeUint() bool {
	if c == nil {
		return false
	}
	found := c.U > math.MaxInt64 || c.Next.hasLargeUint()
	for i := range c.Kids {
		found = found || c.Kids[i].hasLargeUint()
	}
	return found
}

// FuzzJoin has no config do harm, and what was joined split and join again, to the same.
func FuzzJoin(f *testing.F) {
	for seed := range uint64(5) {
		text, _, err := tree.Split(maker{rand.New(rand.NewPCG(seed, 0))}.config(1))
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"W":{"$tensor":"w"},"F":{"$float":"NaN"},"$u":1,"Any":[1,1.0,-0,1e5,"é",{"$$x":null}]}`))
	f.Add([]byte(`[{"a":{"$tensor":"w"},"a.b":[[]]}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		tensors := map[string]*tensor.Tensor{"w": scalar(1)}
		if !bytes.Contains(text, []byte(`{"$tensor":"w"}`)) {
			tensors = nil
		}
		var typed config
		if err := tree.Join(text, tensors, &typed); err == nil {
			checkStable(t, typed)
		}
		var untyped any
		if err := tree.Join(text, tensors, &untyped); err == nil {
			checkStable(t, untyped)
		}
	})
}

func checkStable[T any](t *testing.T, v T) {
	config, tensors, err := tree.Split(v)
	require.NoError(t, err)
	var back T
	require.NoError(t, tree.Join(config, tensors, &back), "%s", config)
	again, same, err := tree.Split(back)
	require.NoError(t, err)
	require.Equal(t, string(config), string(again))
	require.Equal(t, tensors, same)
}
