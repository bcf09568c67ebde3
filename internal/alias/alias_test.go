package alias_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/internal/alias"
)

func TestFind(t *testing.T) {
	x := make([]byte, 100)
	var f alias.Finder // the same for all: it keeps an order
	for _, c := range []struct {
		name string
		xs   [][]byte
		i, j int
		ok   bool
	}{
		{name: "none"},
		{name: "one", xs: [][]byte{x}},
		{name: "neighbours", xs: [][]byte{x[50:], x[:50]}},
		{name: "in another order", xs: [][]byte{x[:50], x[50:]}},
		{name: "empty ones within", xs: [][]byte{x[10:10], x[:50], nil, x[10:10], x[50:]}},
		{name: "one byte", xs: [][]byte{x[70:], nil, x[50:71]}, i: 0, j: 2, ok: true},
		{name: "the same", xs: [][]byte{x[:10], x[90:], x[:10]}, i: 0, j: 2, ok: true},
		{name: "within", xs: [][]byte{x[40:50], x[60:], x[10:60]}, i: 0, j: 2, ok: true},
	} {
		i, j, ok := f.Find(c.xs)
		assert.Equal(t, c.ok, ok, c.name)
		assert.Equal(t, []int{c.i, c.j}, []int{i, j}, c.name)
	}
	xs := make([][]byte, 1000)
	for i := range xs {
		xs[i] = make([]byte, 8)
	}
	f.Find(xs)
	assert.Zero(t, testing.AllocsPerRun(10, func() { f.Find(xs) }))
}
