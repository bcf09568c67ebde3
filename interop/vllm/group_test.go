package vllm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// TestJoinTimeout checks that rank 0 waits for the others, as vLLM's does, and that its error says
// how many have joined, and which of the Go ranks.
func TestJoinTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory(t)
		g, err := vllm.Join(t.Context(), vllm.Config{Rank: 2, Size: 4, Store: s})
		require.NoError(t, err) // returns without waiting
		defer g.Close()
		began := time.Now()
		_, err = vllm.Join(t.Context(), vllm.Config{Rank: 0, Size: 4, Store: s, Timeout: 3 * time.Second})
		failure(t, err, pgroup.ErrTimeout, "2 of 4 ranks have joined; of those of Go 0, 2")
		require.Equal(t, 3*time.Second, time.Since(began))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = vllm.Join(ctx, vllm.Config{Rank: 1, Size: 4, Store: s})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestJoinAgain checks that a Join that failed leaves no state, and may be repeated.
func TestJoinAgain(t *testing.T) {
	for name, at := range map[string]func(*testing.T) *store.Store{"memory": memory, "bare": bare} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := at(t)
				for range 3 {
					_, err := vllm.Join(t.Context(), vllm.Config{Rank: 0, Size: 2, Store: s, Timeout: 300 * time.Millisecond})
					failure(t, err, pgroup.ErrTimeout, "1 of 2 ranks have joined")
				}
				each(t, join(t, s, 2, vllm.Config{}), barrier(within(t, time.Minute)))
			})
		})
	}
}

// TestJoinConflict checks that a duplicate rank, and one rank too many, are refused.
func TestJoinConflict(t *testing.T) {
	s := memory(t)
	join(t, s, 2, vllm.Config{})
	_, err := vllm.Join(t.Context(), vllm.Config{Rank: 1, Size: 2, Store: s})
	failure(t, err, pgroup.ErrConflict, "another process has joined as this rank")

	s = memory(t)
	_, err = s.Add(t.Context(), "\x00torch/init/", 2) // two Python ranks
	require.NoError(t, err)
	_, err = vllm.Join(t.Context(), vllm.Config{Rank: 1, Size: 2, Store: s})
	failure(t, err, pgroup.ErrConflict, "number 3 to join 2 ranks", "a group needs a store of its own")
}

// TestRepeat checks that a call which timed out may be repeated, and that a message which the call
// cannot receive remains for one that can.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		gs := join(t, memory(t), 2, vllm.Config{Timeout: time.Second})
		_, err := vllm.RecvObj[string](ctx, gs[1], 0)
		v := failure(t, err, pgroup.ErrTimeout, `no key "send_to/1/0"`, "recv from 0")
		require.Equal(t, []int{0}, v.Missing)
		_, err = vllm.BroadcastObj(ctx, gs[1], 0, "")
		failure(t, err, pgroup.ErrTimeout, `no key "broadcast_from/0/0"`)

		cancelled, cancel := context.WithCancel(ctx)
		go func() { synctest.Wait(); cancel() }()
		_, err = vllm.RecvObj[string](cancelled, gs[1], 0)
		failure(t, err, pgroup.ErrCancelled, "cancelled here")
		require.ErrorIs(t, err, context.Canceled)

		require.NoError(t, vllm.SendObj(ctx, gs[0], 1, "hello"))
		_, err = vllm.BroadcastObj(ctx, gs[0], 0, "world")
		require.NoError(t, err)
		_, err = vllm.RecvObj[int](ctx, gs[1], 0)
		failure(t, err, pgroup.ErrMismatch, "rank 0 sent an object that this rank cannot decode", "str")
		_, err = vllm.BroadcastObj(ctx, gs[1], 0, 1.5)
		failure(t, err, pgroup.ErrMismatch)
		hello, err := vllm.RecvObj[any](ctx, gs[1], 0)
		require.NoError(t, err)
		require.Equal(t, "hello", hello)
		world, err := vllm.BroadcastObj(ctx, gs[1], 0, "")
		require.NoError(t, err)
		require.Equal(t, "world", world)
	})
}

// TestOrder checks that objects and tensors to one rank are counted together, and that each is
// received by its own verb.
func TestOrder(t *testing.T) {
	ctx := within(t, time.Minute)
	s := memory(t)
	gs := join(t, s, 2, vllm.Config{})
	require.NoError(t, vllm.SendObj(ctx, gs[0], 1, "one"))
	require.NoError(t, gs[0].Send(ctx, 1, tensor.From([]uint8{2}, 1)))
	require.NoError(t, vllm.SendObj(ctx, gs[0], 1, "three"))
	for _, key := range []string{"send_to/1/0", "send_tensor/1/1", "send_to/1/2"} {
		require.Contains(t, keys(t, s), key)
	}
	one, err := vllm.RecvObj[string](ctx, gs[1], 0)
	require.NoError(t, err)
	require.Equal(t, "one", one)
	_, err = vllm.RecvObj[any](ctx, gs[1], 0)
	failure(t, err, pgroup.ErrMismatch, "rank 0 sent a tensor, this rank waits for an object", `"send_tensor/1/1"`)
	two, err := gs[1].Recv(ctx, 0)
	require.NoError(t, err)
	require.True(t, tensor.Equal(two, tensor.From([]uint8{2}, 1)))
	three, err := vllm.RecvObj[any](ctx, gs[1], 0)
	require.NoError(t, err)
	require.Equal(t, "three", three)
}

func TestAllReduce(t *testing.T) {
	ctx := within(t, time.Minute)
	gs := join(t, memory(t), 3, vllm.Config{})
	for op, want := range map[vllm.Op][]int64{vllm.Sum: {9, -9}, vllm.Product: {24, -24}, vllm.Min: {2, -4}, vllm.Max: {4, -2}} {
		for _, got := range each(t, gs, func(g *vllm.Group) (*tensor.Tensor, error) {
			x := int64(g.Rank() + 2)
			return g.AllReduce(ctx, tensor.From([]int64{x, -x}), op)
		}) {
			require.Equal(t, tensor.From(want), got, op)
		}
	}
	_, errs := tryEach(gs, func(g *vllm.Group) (*tensor.Tensor, error) {
		return g.AllReduce(ctx, tensor.New(tensor.F32, 1+g.Rank()/2), vllm.Sum)
	})
	failure(t, errs[0], pgroup.ErrMismatch, "rank 2 has F32[2], this rank F32[1]")
	failure(t, errs[2], pgroup.ErrMismatch, "rank 0 has F32[1], this rank F32[2]")
}

// TestBadArguments checks that invalid arguments are refused before anything is sent.
func TestBadArguments(t *testing.T) {
	ctx := t.Context()
	s := memory(t)
	g := join(t, s, 1, vllm.Config{Name: "mine"})[0]
	before := keys(t, s)
	x := tensor.New(tensor.F32, 1)
	for says, verb := range map[string]func() error{
		"not avg":                             func() error { _, err := g.AllReduce(ctx, x, pgroup.Avg); return err },
		"allreduce of group \"mine\"":         func() error { _, err := g.AllReduce(ctx, nil, vllm.Sum); return err },
		"elements of BOOL cannot be combined": func() error { _, err := g.AllReduce(ctx, tensor.New(tensor.Bool, 1), vllm.Sum); return err },
		"send to 0 of group \"mine\"":         func() error { return g.Send(ctx, 0, nil) },
		"broadcast from 0 of":                 func() error { _, err := g.Broadcast(ctx, 0, &tensor.Tensor{DType: tensor.F32}); return err },
		"chan int":                            func() error { return vllm.SendObj(ctx, g, 0, make(chan int)) },
		"func":                                func() error { _, err := vllm.AllGatherObj[any](ctx, g, func() {}); return err },
	} {
		err := verb()
		require.ErrorIs(t, err, pgroup.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	require.Equal(t, before, keys(t, s))
}

// TestWhatIsNoTensorIsPassedOver checks that any value under a tensor's key that is not a tensor is
// an error, and that the next message follows it.
func TestWhatIsNoTensorIsPassedOver(t *testing.T) {
	s := memory(t)
	gs, ctx := join(t, s, 2, vllm.Config{}), t.Context()
	want := tensor.New(tensor.U8, 3)
	var values [][]byte
	add := func(v any) {
		b, err := pickle.Append(nil, v)
		require.NoError(t, err)
		values = append(values, b)
	}
	for _, v := range []any{nil, 1, "text", []any{want}, pickle.Dict{}, want} {
		add(v)
	}
	values = slices.Insert(values, 0, []byte(nil), []byte("no pickle"), []byte("cos\nsystem\n."))
	for i, b := range values {
		for _, key := range []string{"send_tensor/1/", "broadcast_tensor/0/"} {
			require.NoError(t, s.Set(ctx, key+strconv.Itoa(i), b, nil))
		}
	}
	for key, verb := range map[string]func() (*tensor.Tensor, error){
		"send_tensor/1/":      func() (*tensor.Tensor, error) { return gs[1].Recv(ctx, 0) },
		"broadcast_tensor/0/": func() (*tensor.Tensor, error) { return gs[1].Broadcast(ctx, 0, nil) },
	} {
		for i := range values[:len(values)-1] {
			got, err := verb()
			require.Nil(t, got)
			failure(t, err, pgroup.ErrMismatch, fmt.Sprintf("rank 0 set %q to an object that is not a tensor; it is skipped: pickle: ", key+strconv.Itoa(i)))
		}
		got, err := verb()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestTextLikeABarrier checks that only a broadcast can be a barrier's ID. A message that looks
// like one is text.
func TestTextLikeABarrier(t *testing.T) {
	gs, ctx := join(t, memory(t), 2, vllm.Config{}), t.Context()
	const text = "barrier_01234567-89ab-cdef-0123-456789abcdef"
	require.NoError(t, vllm.SendObj(ctx, gs[0], 1, text))
	got, err := vllm.RecvObj[string](ctx, gs[1], 0)
	require.NoError(t, err)
	require.Equal(t, text, got)

	_, err = vllm.BroadcastObj(ctx, gs[0], 0, text)
	require.NoError(t, err)
	_, err = vllm.BroadcastObj[any](ctx, gs[1], 0, "")
	failure(t, err, pgroup.ErrMismatch, "rank 0 called barrier, this rank broadcast from 0")
}

// TestBareStore checks that a store without times to live, leases and lists also works, but reports
// less in its errors.
func TestBareStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := bare(t)
		gs := join(t, s, 3, vllm.Config{})
		_, errs := tryEach(gs[:2], barrier(within(t, time.Second)))
		for _, err := range errs {
			require.Equal(t, []int{2}, failure(t, err, pgroup.ErrTimeout, "2: in no operation of this group that waits").Missing)
		}
		failure(t, gs[2].Barrier(within(t, time.Minute)), pgroup.ErrTimeout)
		each(t, gs, barrier(within(t, time.Minute)))
		require.NoError(t, gs[2].Close())
		_, err := vllm.BroadcastObj[any](within(t, time.Minute), gs[0], 2, nil)
		failure(t, err, pgroup.ErrLeft)
	})
}

// TestGatherInStep checks that a rank which cannot take part in an all-gather consumes its number
// all the same, and is in step with the others at the next.
func TestGatherInStep(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for name, bad := range map[string]func(g *vllm.Group) error{
		"an object that cannot be sent": func(g *vllm.Group) error { _, err := vllm.AllGatherObj(context.Background(), g, func() {}); return err },
		"a context that is over":        func(g *vllm.Group) error { _, err := vllm.AllGatherObj(over, g, 1); return err },
		"a tensor that is none":         func(g *vllm.Group) error { _, err := g.AllReduce(context.Background(), nil, vllm.Sum); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gs := join(t, memory(t), 2, vllm.Config{Timeout: time.Second})
				_, errs := tryEach(gs, func(g *vllm.Group) (any, error) {
					if g.Rank() == 1 {
						return nil, bad(g)
					}
					return vllm.AllGatherObj(t.Context(), g, 1)
				})
				require.Equal(t, []int{1}, failure(t, errs[0], pgroup.ErrTimeout).Missing)
				require.Error(t, errs[1])
				for _, got := range each(t, gs, func(g *vllm.Group) ([]int, error) { return vllm.AllGatherObj(t.Context(), g, 2) }) {
					require.Equal(t, []int{2, 2}, got)
				}
			})
		})
	}
}

// hooked calls before with each request, and fails with its error.
type hooked struct {
	store.Engine
	before func(req *wire.Request) error
}

func (e *hooked) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if err := e.before(req); err != nil {
		return err
	}
	return e.Engine.Do(ctx, req, rep)
}

// TestLastWord checks that a message which arrives while a rank checks on the others is received,
// even if its sender then leaves.
func TestLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory(t)
		var gs []*vllm.Group
		said := false
		e := &hooked{s.Engine(), func(req *wire.Request) error {
			if req.Op == wire.OpList && !said {
				said = true
				_, err := vllm.BroadcastObj(t.Context(), gs[0], 0, "goodbye")
				return errors.Join(err, gs[0].Close())
			}
			return nil
		}}
		gs = joinAt(t, []*store.Store{s, store.New(e)}, vllm.Config{})
		got, err := vllm.BroadcastObj(within(t, time.Minute), gs[1], 0, "")
		require.NoError(t, err)
		require.Equal(t, "goodbye", got)
		_, err = vllm.BroadcastObj(within(t, time.Minute), gs[1], 0, "")
		failure(t, err, pgroup.ErrLeft)
	})
}

// TestTakenBack checks that a rank deletes its note of what it waits for, or of what it failed in,
// when that no longer holds.
func TestTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory(t)
		gs := join(t, s, 2, vllm.Config{Timeout: 10 * time.Second})
		says := func() string {
			v, err := s.Get(t.Context(), "muster/doing/1")
			if err != nil {
				require.ErrorIs(t, err, store.ErrNotFound)
			}
			return string(v)
		}
		require.Empty(t, says())
		done := make(chan error)
		go func() { _, err := vllm.RecvObj[any](t.Context(), gs[1], 0); done <- err }()
		time.Sleep(time.Second)
		require.Equal(t, "in recv from 0 #1, waiting for rank 0", says())
		require.NoError(t, vllm.SendObj(t.Context(), gs[0], 1, "x"))
		require.NoError(t, <-done)
		require.Empty(t, says())

		require.Error(t, gs[1].Barrier(t.Context()))
		require.Equal(t, "failed in barrier #1, waiting for rank 0", says())
		_, err := vllm.BroadcastObj(t.Context(), gs[1], 1, "x")
		require.NoError(t, err)
		require.Empty(t, says())
	})
}

// TestUnknown checks that a rank which cannot learn the outcome returns ErrUnknown, whether the
// others passed or not.
func TestUnknown(t *testing.T) {
	for _, name := range []string{"passed", "failed"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory(t)
				e := &hooked{s.Engine(), func(req *wire.Request) error {
					if strings.HasPrefix(req.Key, "departure_") {
						return store.ErrUnavailable
					}
					return nil
				}}
				all := joinAt(t, []*store.Store{s, store.New(e), s}, vllm.Config{})
				gs := []*vllm.Group{all[0]}
				if name == "passed" {
					gs = append(gs, all[2])
				}
				_, errs := tryEach(append(gs, all[1]), barrier(within(t, time.Second)))
				for i, err := range errs[:len(gs)] {
					require.Equal(t, name == "passed", err == nil, "%d: %v", i, err)
				}
				require.ErrorIs(t, errs[len(gs)], pgroup.ErrUnknown)
				failure(t, errs[len(gs)], pgroup.ErrUnavailable, "did not report the result of the barrier")
			})
		})
	}
}
