package tree_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tree"
	"github.com/muster-pg/muster/tensor"
)

type base struct {
	ID   int `json:"id"`
	Name string
}

// Shared is embedded by a pointer, which only an exported type can be.
type Shared struct {
	Rank   int
	Weight *tensor.Tensor
}

type tagged struct {
	base
	*Shared
	Name    string         `json:"name,omitempty"`
	Skipped chan int       `json:"-"`
	Dash    int            `json:"-,"` //nolint:staticcheck // encoding/json names it "-"
	NoBias  *tensor.Tensor `json:"bias,omitempty"`
	When    time.Time      `json:",omitzero"`
	BadTag  int            `json:"a\"b"` //nolint:staticcheck // encoding/json does not use the name
	hidden  int
}

func TestTags(t *testing.T) {
	config, tensors := split(t, tagged{base: base{ID: 4, Name: "b"}, Skipped: make(chan int), hidden: 3})
	assert.Equal(t, `{"id":4,"Name":"b","name":"","-":0,"bias":null,"When":"0001-01-01T00:00:00Z","BadTag":0}`, config)
	assert.Empty(t, tensors)

	v := tagged{
		base: base{1, "inner"}, Shared: &Shared{2, scalar(1)}, Name: "outer", Dash: 3, NoBias: scalar(2), When: time.Unix(1, 0).UTC(), BadTag: 5,
	}
	config, tensors = split(t, v)
	assert.Equal(t, `{"id":1,"Name":"inner","Rank":2,"Weight":{"$tensor":"Weight"},"name":"outer","-":3,`+
		`"bias":{"$tensor":"bias"},"When":"1970-01-01T00:00:01Z","BadTag":5}`, config)
	assert.Len(t, tensors, 2)
	assert.Equal(t, v, again(t, v))
}

func TestEmbedding(t *testing.T) {
	type leaf struct {
		*tensor.Tensor
		time.Duration
	}
	l := leaf{scalar(1), 5}
	config, tensors := split(t, l)
	assert.Equal(t, `{"Tensor":{"$tensor":"Tensor"},"Duration":5}`, config)
	assert.Len(t, tensors, 1)
	assert.Equal(t, l, again(t, l))

	type twins struct { // whose methods are neither's of the two
		time.Time
		big.Int
	}
	both := twins{time.Unix(5, 0).UTC(), *big.NewInt(7)}
	config, _ = split(t, both)
	assert.Equal(t, `{"Time":"1970-01-01T00:00:05Z","Int":7}`, config)
	assert.Equal(t, both, again(t, both))

	type Self struct {
		*Self
		X int
	}
	s := Self{X: 1}
	assert.Equal(t, s, again(t, s))
}

type marshaler struct{ W *tensor.Tensor }

func (marshaler) MarshalText() ([]byte, error) { return []byte("lost"), nil }

func TestTypeErrors(t *testing.T) {
	type left struct{ X int }
	type right struct{ X int }
	for name, tc := range map[string]struct {
		v    any
		want string
	}{
		"ambiguous": {struct {
			left
			right
		}{}, `tree: k: struct { tree_test.left; tree_test.right } has two fields that are "X" in JSON: give one of them another name`},
		"hidden": {struct {
			left
			X string
		}{}, `has two fields that are "X" in JSON`},
		"string": {struct {
			X int `json:",string"`
		}{}, "the option string in its tag is not supported"},
		"unexported pointer": {struct{ *left }{&left{}}, "embeds *tree_test.left, which is not exported and cannot be set"},
		"func":               {func() {}, "tree: k: a func() cannot be split"},
		"complex":            {complex(1, 2), "a complex128 cannot be split"},
		"chan in a struct":   {struct{ C chan int }{}, "tree: k.C: a chan int cannot be split"},
		"any as a key":       {map[any]int{1: 2}, "tree: k: json: unsupported type"},
		"not UTF-8":          {"\xff", `tree: k: the string "\xff" is not UTF-8, which JSON is: make it a []byte`},
		"key not UTF-8":      {map[string]int{"\xff": 1}, `tree: k: the string "\xff" is not UTF-8`},
		"broken tensor":      {&tensor.Tensor{DType: tensor.F32, Shape: []int{2}}, "tree: k: tensor: F32 of shape [2] has 8 bytes, not 0"},
		"own with a tensor":  {marshaler{scalar(1)}, "tree: k: tree_test.marshaler has a method of its own for JSON or text, which does not part its tensors"},
		"embedded method": {struct {
			time.Time
			W []map[string]*tensor.Tensor
		}{}, "has a method of its own for JSON or text, which does not part its tensors"},
		"own fails": {time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC), "tree: k: json: error calling MarshalJSON"},
		"same key":  {map[textKeyTwin]int{{1}: 1, {2}: 2}, `tree: k: two keys of the map are "twin" in JSON`},
	} {
		t.Run(name, func(t *testing.T) {
			config, tensors, err := tree.Split(map[string]any{"k": tc.v})
			require.ErrorContains(t, err, tc.want)
			assert.Nil(t, config)
			assert.Nil(t, tensors)
		})
	}
}

type textKeyTwin struct{ N int }

func (textKeyTwin) MarshalText() ([]byte, error) { return []byte("twin"), nil }
