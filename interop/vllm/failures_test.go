package vllm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// Each of the following tests checks a failure of vLLM's own class, by its number in the list of
// those.

// TestVLLM01TwoSenders checks failure 1: keys between ranks lack the sender. Here, of two senders
// to one rank, the second is refused, and no message is lost.
func TestVLLM01TwoSenders(t *testing.T) {
	ctx := within(t, time.Minute)
	s := memory(t)
	gs := join(t, s, 4, vllm.Config{})
	require.NoError(t, vllm.SendObj(ctx, gs[0], 2, "from 0"))
	failure(t, vllm.SendObj(ctx, gs[1], 2, "from 1"), pgroup.ErrConflict, "rank 0 sends to rank 2", "do not name the sender")
	failure(t, gs[1].Send(ctx, 2, tensor.New(tensor.U8, 1)), pgroup.ErrConflict, "rank 0 sends to rank 2")
	require.NoError(t, vllm.SendObj(ctx, gs[1], 3, "to another"))

	_, err := vllm.RecvObj[string](ctx, gs[2], 3)
	failure(t, err, pgroup.ErrConflict, "rank 0 sends to this rank")
	got, err := vllm.RecvObj[string](ctx, gs[2], 0)
	require.NoError(t, err)
	require.Equal(t, "from 0", got)
	_, err = vllm.RecvObj[string](ctx, gs[2], 1) // it would read what rank 0 sent
	failure(t, err, pgroup.ErrConflict, "rank 0 has sent to this rank")
	require.NoError(t, vllm.SendObj(ctx, gs[0], 2, "again"))

	// A Python rank makes no claim, but its message is there.
	b, err := pickle.Append(nil, "from Python")
	require.NoError(t, err)
	require.NoError(t, s.Set(ctx, "send_to/1/0", b, nil))
	failure(t, vllm.SendObj(ctx, gs[0], 1, "from 0"), pgroup.ErrConflict, "rank of Python sends to rank 1")
}

// TestVLLM02BarrierTimeout checks that the barrier keeps to its timeout, whichever ranks are
// missing, and names them.
func TestVLLM02BarrierTimeout(t *testing.T) {
	for _, missing := range [][]int{{3}, {2, 3}, {1, 2, 3}} {
		t.Run(fmt.Sprint(missing), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gs := join(t, memory(t), 4, vllm.Config{})
				began := time.Now()
				_, errs := tryEach(gs[:4-len(missing)], barrier(within(t, time.Second)))
				require.GreaterOrEqual(t, time.Since(began), time.Second)
				require.LessOrEqual(t, time.Since(began), time.Second+store.ResultGrace)
				for _, err := range errs {
					v := failure(t, err, pgroup.ErrTimeout, "barrier #1")
					require.Equal(t, missing, v.Missing)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
			})
		})
	}
}

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

// TestVLLM05MixedVerbs checks that ranks which call different verbs get an error that says which
// rank called what.
func TestVLLM05MixedVerbs(t *testing.T) {
	any1 := func(g *vllm.Group, ctx context.Context) error {
		_, err := vllm.BroadcastObj[any](ctx, g, 0, 1)
		return err
	}
	text := func(g *vllm.Group, ctx context.Context) error {
		_, err := vllm.BroadcastObj(ctx, g, 0, "text")
		return err
	}
	number := func(g *vllm.Group, ctx context.Context) error { _, err := vllm.BroadcastObj(ctx, g, 0, 1); return err }
	from1 := func(g *vllm.Group, ctx context.Context) error { _, err := vllm.BroadcastObj(ctx, g, 1, 1); return err }
	array := func(g *vllm.Group, ctx context.Context) error {
		_, err := g.Broadcast(ctx, 0, tensor.New(tensor.U8, 2))
		return err
	}
	gather := func(g *vllm.Group, ctx context.Context) error { _, err := vllm.AllGatherObj(ctx, g, 1); return err }
	meet := func(g *vllm.Group, ctx context.Context) error { return g.Barrier(ctx) }
	for name, c := range map[string]struct {
		zero, one func(*vllm.Group, context.Context) error
		says      string // the error on rank 1
		is        error
		receives  string // the error on rank 0; empty if it does not wait
	}{
		"barrier, any":               {meet, any1, "rank 0 called barrier, this rank broadcast from 0", pgroup.ErrMismatch, "1: failed in broadcast from 0"},
		"barrier, text":              {meet, text, "rank 0 called barrier", pgroup.ErrMismatch, ""},
		"barrier, number":            {meet, number, "rank 0 called barrier", pgroup.ErrMismatch, ""},
		"barrier, all-gather":        {meet, gather, "rank 0 called barrier, this rank allgather", pgroup.ErrMismatch, ""},
		"broadcast, barrier":         {text, meet, "this rank called barrier, rank 0 did not", pgroup.ErrMismatch, ""},
		"all-gather, barrier":        {gather, meet, "this rank called barrier, rank 0 did not", pgroup.ErrMismatch, "1: failed in barrier #1"},
		"tensor, object":             {array, text, "rank 0 sent a tensor, this rank waits for an object", pgroup.ErrMismatch, ""},
		"object, tensor":             {text, array, "rank 0 sent an object, this rank waits for a tensor", pgroup.ErrMismatch, ""},
		"tensor, barrier":            {array, meet, "rank 0 sent a tensor, this rank waits for an object", pgroup.ErrMismatch, ""},
		"another type":               {text, number, "rank 0 sent an object that this rank cannot decode", pgroup.ErrMismatch, ""},
		"broadcast from 1, barrier":  {from1, meet, "broadcast from 1 #1, waiting for rank 1", pgroup.ErrTimeout, "barrier #1, waiting for rank 0"},
		"broadcast from each other":  {from1, any1, "broadcast from 1 #1, waiting for rank 1", pgroup.ErrTimeout, "broadcast from 0 #1, waiting for rank 0"},
		"all-gather, broadcast of 0": {gather, number, "", nil, "missing rank 1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gs := join(t, memory(t), 2, vllm.Config{})
				ctx := within(t, 10*time.Second)
				verbs := []func(*vllm.Group, context.Context) error{c.zero, c.one}
				_, errs := tryEach(gs, func(g *vllm.Group) (struct{}, error) { return struct{}{}, verbs[g.Rank()](g, ctx) })
				if c.is == nil {
					require.NoError(t, errs[1])
				} else {
					failure(t, errs[1], c.is, c.says)
				}
				if c.receives != "" {
					require.ErrorContains(t, errs[0], c.receives)
				}
			})
		})
	}
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

// TestVLLM07BadRanks checks that invalid ranks are refused at once, with an error that names them.
func TestVLLM07BadRanks(t *testing.T) {
	ctx := t.Context()
	s := memory(t)
	for name, c := range map[string]vllm.Config{
		"Config.Rank is -1":          {Rank: -1, Size: 2, Store: s},
		"Config.Rank is 2":           {Rank: 2, Size: 2, Store: s},
		"Config.Size is 0":           {Store: s},
		"Config.Size is -1":          {Size: -1, Store: s},
		"Config.Store is nil":        {Size: 1},
		"Config.Timeout is -1ns":     {Size: 1, Store: s, Timeout: -1},
		"Config.DataExpiration is -": {Size: 1, Store: s, DataExpiration: -1},
	} {
		_, err := vllm.Join(ctx, c)
		require.ErrorIs(t, err, pgroup.ErrInvalid)
		require.ErrorContains(t, err, name)
	}
	require.Empty(t, keys(t, s))

	gs := join(t, s, 2, vllm.Config{})
	x := tensor.New(tensor.F32, 1)
	for _, rank := range []int{-1, 2, 99} {
		for name, verb := range map[string]func() error{
			"send":             func() error { return vllm.SendObj(ctx, gs[0], rank, 1) },
			"recv":             func() error { _, err := vllm.RecvObj[any](ctx, gs[0], rank); return err },
			"broadcast":        func() error { _, err := vllm.BroadcastObj(ctx, gs[0], rank, 1); return err },
			"send tensor":      func() error { return gs[0].Send(ctx, rank, x) },
			"recv tensor":      func() error { _, err := gs[0].Recv(ctx, rank); return err },
			"broadcast tensor": func() error { _, err := gs[0].Broadcast(ctx, rank, x); return err },
		} {
			err := verb()
			require.ErrorIs(t, err, pgroup.ErrInvalid, name)
			require.ErrorContains(t, err, fmt.Sprintf("rank %d of a group of 2", rank), name)
		}
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

// TestVLLM10Unsafe checks that a pickle which would execute code is refused by name.
func TestVLLM10Unsafe(t *testing.T) {
	ctx := within(t, time.Minute)
	s := memory(t)
	gs := join(t, s, 2, vllm.Config{})
	evil := []byte("cos\nsystem\n(S'touch /tmp/muster-was-here'\ntR.")
	require.NoError(t, s.Set(ctx, "broadcast_from/0/0", evil, nil))
	require.NoError(t, s.Set(ctx, "broadcast_from/0/1", evil, nil))
	require.NoError(t, s.Set(ctx, "send_to/1/0", evil, nil))
	for _, verb := range []func() error{
		func() error { _, err := vllm.BroadcastObj[any](ctx, gs[1], 0, nil); return err },
		func() error { _, err := vllm.RecvObj[string](ctx, gs[1], 0); return err },
		func() error { return gs[1].Barrier(ctx) },
	} {
		err := verb()
		failure(t, err, pgroup.ErrMismatch)
		require.ErrorIs(t, err, pickle.ErrRefused)
		bad, is := errors.AsType[*pickle.Error](err)
		require.True(t, is)
		require.Equal(t, "os.system", bad.Name)
	}
	require.NoFileExists(t, "/tmp/muster-was-here")
}

// TestVLLM12Close checks that a group can be closed: waiting calls end, the other ranks get an
// error, and the store continues.
func TestVLLM12Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory(t)
		gs := join(t, s, 3, vllm.Config{})
		waiting := make(chan error, 2)
		go func() { waiting <- gs[1].Barrier(t.Context()) }()
		go func() { _, err := vllm.RecvObj[any](t.Context(), gs[1], 0); waiting <- err }()
		synctest.Wait()
		require.ErrorIs(t, gs[1].Barrier(t.Context()), pgroup.ErrBusy)
		_, err := gs[1].Recv(t.Context(), 0)
		require.ErrorIs(t, err, pgroup.ErrBusy)
		require.NoError(t, gs[1].Close())
		require.NoError(t, gs[1].Close())
		failure(t, <-waiting, pgroup.ErrClosed)
		failure(t, <-waiting, pgroup.ErrClosed)
		failure(t, gs[1].Barrier(t.Context()), pgroup.ErrClosed)
		_, err = vllm.BroadcastObj[any](within(t, time.Minute), gs[0], 1, nil)
		require.Equal(t, []int{1}, failure(t, err, pgroup.ErrLeft, "rank 1 left").Left)
		require.NoError(t, s.Set(t.Context(), "still", []byte("here"), nil))
	})
}

// TestVLLM13Expiry checks that a late rank gets the error that a message has expired; no rank needs
// to send again for that.
func TestVLLM13Expiry(t *testing.T) {
	late := func(t *testing.T, g *vllm.Group, rest time.Duration) {
		began := time.Now()
		_, err := vllm.BroadcastObj[any](within(t, time.Hour), g, 0, nil)
		failure(t, err, pgroup.ErrExpired, `"broadcast_from/0/0"`, "rank 0")
		_, err = vllm.RecvObj[any](within(t, time.Hour), g, 0)
		failure(t, err, pgroup.ErrExpired, `"send_to/1/0"`, "rank 0")
		require.Less(t, time.Since(began), rest)
	}
	t.Run("by the store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := memory(t)
			gs := join(t, s, 2, vllm.Config{DataExpiration: time.Minute})
			_, err := vllm.BroadcastObj(t.Context(), gs[0], 0, "news")
			require.NoError(t, err)
			require.NoError(t, vllm.SendObj(t.Context(), gs[0], 1, "news"))
			time.Sleep(time.Minute - time.Nanosecond)
			require.Contains(t, keys(t, s), "send_to/1/0")
			time.Sleep(time.Nanosecond)
			require.NotContains(t, keys(t, s), "send_to/1/0")
			late(t, gs[1], 5*time.Second)
		})
	})
	t.Run("by the sender", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := bare(t)
			gs := join(t, s, 2, vllm.Config{DataExpiration: time.Minute})
			send := func() {
				_, err := vllm.BroadcastObj(t.Context(), gs[0], 0, "news")
				require.NoError(t, err)
				require.NoError(t, vllm.SendObj(t.Context(), gs[0], 1, "news"))
			}
			send()
			time.Sleep(time.Minute + time.Second)
			_, err := s.Get(t.Context(), "broadcast_from/0/0")
			require.NoError(t, err) // as with vLLM, it is deleted with the next
			send()
			_, err = s.Get(t.Context(), "broadcast_from/0/0")
			require.ErrorIs(t, err, store.ErrNotFound)
			late(t, gs[1], 5*time.Second)
			// the next call continues with the next message
			got, err := vllm.BroadcastObj[any](t.Context(), gs[1], 0, nil)
			require.NoError(t, err)
			require.Equal(t, "news", got)
			got, err = vllm.RecvObj[any](t.Context(), gs[1], 0)
			require.NoError(t, err)
			require.Equal(t, "news", got)
		})
	})
}
