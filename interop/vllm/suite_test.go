package vllm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// stores are the kinds of store that a group may use.
var stores = map[string]func(*testing.T) *store.Store{
	"memory": memory,
	"bare":   bare,
	"served": func(t *testing.T) *store.Store {
		l := listen(t, "127.0.0.1:0")
		serve(t, l)
		return dial(t, l)
	},
}

// everywhere runs a case in each kind of store.
func everywhere(t *testing.T, body func(t *testing.T, at func(*testing.T) *store.Store)) {
	for name, at := range stores {
		t.Run(name, func(t *testing.T) { body(t, at) })
	}
}

// check reports errors from goroutines of a test.
func check(t *testing.T, err error, ok bool, got any) {
	t.Helper()
	if err != nil || !ok {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestSuiteAlone checks that every verb works in a group of one.
func TestSuiteAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, at func(*testing.T) *store.Store) {
		ctx := within(t, time.Minute)
		g := join(t, at(t), 1, vllm.Config{})[0]
		require.NoError(t, g.Barrier(ctx))
		all, err := vllm.AllGatherObj(ctx, g, "me")
		require.NoError(t, err)
		require.Equal(t, []string{"me"}, all)
		one, err := vllm.BroadcastObj(ctx, g, 0, 7)
		require.NoError(t, err)
		require.Equal(t, 7, one)
		x := tensor.From([]float32{1, 2}, 2)
		y, err := g.AllReduce(ctx, x, vllm.Product)
		require.NoError(t, err)
		require.True(t, tensor.Equal(x, y))
		require.NoError(t, vllm.SendObj(ctx, g, 0, "to myself"))
		got, err := vllm.RecvObj[string](ctx, g, 0)
		require.NoError(t, err)
		require.Equal(t, "to myself", got)
	})
}
