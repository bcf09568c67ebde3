package vllm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
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

// TestSuiteGroupsCoexist uses two groups, of ranks 0 to 3 and 0 to 2, in the same processes, as
// vLLM's own suite does.
func TestSuiteGroupsCoexist(t *testing.T) {
	everywhere(t, func(t *testing.T, at func(*testing.T) *store.Store) {
		ctx := within(t, time.Minute)
		pg1 := join(t, at(t), 4, vllm.Config{Name: "pg1"})
		pg2 := join(t, at(t), 3, vllm.Config{Name: "pg2"})
		together(4, func(rank int) {
			groups := []*vllm.Group{pg1[rank]}
			if rank < 3 {
				groups = append(groups, pg2[rank])
			}
			value := tensor.From([]int64{int64(rank)}, 1)
			for i, g := range groups {
				got, err := vllm.BroadcastObj(ctx, g, 2, fmt.Sprintf("group %d by %d", i+1, rank))
				check(t, err, got == fmt.Sprintf("group %d by 2", i+1), got)
				check(t, g.Barrier(ctx), true, nil)
				value, err = g.AllReduce(ctx, value, vllm.Sum)
				check(t, err, true, nil)
			}
			want := []int64{18, 18, 18, 6}[rank] // 0+1+2+3, times 3
			check(t, nil, tensor.Equal(value, tensor.From([]int64{want}, 1)), value)
		})
	})
}

// check reports errors from goroutines of a test.
func check(t *testing.T, err error, ok bool, got any) {
	t.Helper()
	if err != nil || !ok {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestSuiteManyBroadcasts broadcasts 10,000 arrays in a row, the same on all ranks.
func TestSuiteManyBroadcasts(t *testing.T) {
	const rounds = 10_000
	ctx := within(t, 5*time.Minute)
	gs := join(t, memory(t), 4, vllm.Config{})
	each(t, gs, barrier(ctx))
	each(t, gs, func(g *vllm.Group) (struct{}, error) {
		for i := range rounds {
			want := pickle.Array{Tensor: tensor.From([]int32{int32(i), int32(3 * i), -int32(i)}, 3)}
			var mine pickle.Array
			if g.Rank() == 2 {
				mine = want
			}
			got, err := vllm.BroadcastObj(ctx, g, 2, mine)
			if err != nil {
				return struct{}{}, err
			}
			if !tensor.Equal(got.Tensor, want.Tensor) {
				return struct{}{}, fmt.Errorf("round %d on rank %d: %v", i, g.Rank(), got)
			}
		}
		return struct{}{}, g.Barrier(ctx)
	})
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
