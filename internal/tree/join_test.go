package tree_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
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
	text, err := os.ReadFile("testdata/join_errors.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		quoted, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		config, err := strconv.Unquote(quoted)
		require.NoError(t, err, line)
		tensors := map[string]*tensor.Tensor{
			"w": scalar(1), "nil": nil, "broken": {DType: tensor.F32, Shape: []int{1}},
		}
		v := target{S: "before"}
		err = tree.Join([]byte(config), tensors, &v)
		assert.ErrorContains(t, err, want, config)
		assert.Equal(t, target{S: "before"}, v, config)
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
