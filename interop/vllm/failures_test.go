package vllm_test

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Each of the following tests checks a failure of vLLM's own class, by its number in the list of
// those.

// TestVLLM03SplitResult checks that a rank which arrives after the others' time, or at that very moment, gets the
// same result as they do, whichever it is, and that all ranks are in step afterwards.
func TestVLLM03SplitResult(t *testing.T) {
	for i := range 200 {
		late, after := i%3, time.Duration(i%2)*time.Second
		synctest.Test(t, func(t *testing.T) {
			gs := join(t, memory(t), 3, vllm.Config{})
			limit := within(t, time.Second)
			_, errs := tryEach(gs, func(g *vllm.Group) (struct{}, error) {
				ctx := limit
				if g.Rank() == late {
					ctx = within(t, time.Minute)
					time.Sleep(time.Second + after)
				}
				return struct{}{}, g.Barrier(ctx)
			})
			for rank, err := range errs {
				require.Equal(t, errs[0] == nil, err == nil, "%v", errs)
				if after > 0 && rank != late {
					require.Equal(t, []int{late}, failure(t, err, pgroup.ErrTimeout).Missing)
				}
			}
			each(t, gs, barrier(within(t, time.Minute)))
		})
	}
}

// TestVLLM04NoLeak checks that barriers leave no keys.
func TestVLLM04NoLeak(t *testing.T) {
	ctx := within(t, time.Minute)
	s := memory(t)
	gs := join(t, s, 3, vllm.Config{})
	each(t, gs, barrier(ctx))
	before := keys(t, s)
	each(t, gs, func(g *vllm.Group) (struct{}, error) {
		for range 100 {
			if err := g.Barrier(ctx); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	require.Equal(t, before, keys(t, s))
}

// TestVLLM06BlockedGet checks that a receive which waits blocks no other call on the store or the
// group.
func TestVLLM06BlockedGet(t *testing.T) {
	for name, s := range map[string]*store.Store{"muster's": memory(t), "a TCPStore": bare(t)} {
		ctx := within(t, time.Minute)
		gs := join(t, s, 2, vllm.Config{Name: name})
		got := make(chan string)
		go func() {
			v, err := vllm.RecvObj[string](ctx, gs[1], 0)
			check(t, err, true, nil)
			got <- v
		}()
		each(t, gs, barrier(ctx)) // rank 1 as well
		require.NoError(t, vllm.SendObj(ctx, gs[1], 0, "while it waits"))
		v, err := vllm.RecvObj[string](ctx, gs[0], 1)
		require.NoError(t, err)
		require.Equal(t, "while it waits", v)
		require.NoError(t, vllm.SendObj(ctx, gs[0], 1, "at last"))
		require.Equal(t, "at last", <-got)
	}
}

// TestVLLM08Death checks that any rank that dies is named at once, and that a store that has ended
// is reported.
func TestVLLM08Death(t *testing.T) {
	t.Run("of a rank", func(t *testing.T) {
		l := testcluster.Listen(t)
		serve(t, l)
		at := []*store.Store{dial(t, l), dial(t, l), dial(t, l)}
		gs := joinAt(t, at, vllm.Config{})
		ctx := within(t, time.Minute)
		waiting := make(chan error, 4)
		go func() { waiting <- gs[0].Barrier(ctx) }()
		go func() { waiting <- gs[1].Barrier(ctx) }()
		go func() { _, err := vllm.RecvObj[any](ctx, gs[0], 2); waiting <- err }()
		go func() { _, err := vllm.RecvObj[any](ctx, gs[1], 2); waiting <- err }()
		_ = at[2].Close() // as its process's end would
		for range 4 {
			require.Equal(t, []int{2}, failure(t, <-waiting, pgroup.ErrLost, "lost rank 2").Lost)
		}
	})
	for name, host := range map[string]struct {
		dial func(t *testing.T, l net.Listener) *store.Store
		says string
	}{
		"of the host":                  {dial, ""},
		"of a host that is a TCPStore": {dialTorch, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			l := testcluster.Listen(t)
			stop := serve(t, l)
			gs := joinAt(t, []*store.Store{host.dial(t, l), host.dial(t, l)}, vllm.Config{})
			waiting := make(chan error, 2)
			go func() { waiting <- gs[1].Barrier(within(t, time.Hour)) }()
			go func() { _, err := vllm.RecvObj[any](within(t, time.Hour), gs[1], 0); waiting <- err }()
			stop()
			for range 2 {
				failure(t, <-waiting, pgroup.ErrUnavailable, "the store cannot be reached, which vLLM's rank 0 hosts", host.says)
			}
		})
	}
}

// TestVLLM09Costs checks that the number of a rank's requests to the store does not grow with the
// group, except for the values that it reads.
func TestVLLM09Costs(t *testing.T) {
	for _, n := range []int{2, 4, 16, 64} {
		// no verb takes long enough for ranks to check on each other
		synctest.Test(t, func(t *testing.T) {
			shared := new(store.Memory)
			asked, at := make([]atomic.Int64, n), make([]*store.Store, n)
			for i := range at {
				at[i] = store.New(&hooked{shared, func(*wire.Request) error { asked[i].Add(1); return nil }})
			}
			t.Cleanup(func() { _ = shared.Close() })
			gs := joinAt(t, at, vllm.Config{})
			most := func(verb func(g *vllm.Group) (any, error)) (most int64) {
				for i := range asked {
					asked[i].Store(0)
				}
				each(t, gs, verb)
				for i := range asked {
					most = max(most, asked[i].Load())
				}
				return most
			}
			ctx := t.Context()
			require.EqualValues(t, 3, most(func(g *vllm.Group) (any, error) { return vllm.AllGatherObj(ctx, g, 1) }), "all-gather of %d", n)
			require.EqualValues(t, 7, most(func(g *vllm.Group) (any, error) { return nil, g.Barrier(ctx) }), "barrier of %d", n)
		})
	}
}
