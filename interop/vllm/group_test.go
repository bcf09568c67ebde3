package vllm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// TestBadConfig has what a text of TestRules cannot express; join.txt has the others.
func TestBadConfig(t *testing.T) {
	for says, c := range map[string]vllm.Config{"Config.Rank is -1": {Rank: -1, Size: 2, Store: memory(t)}, "Config.Store is nil": {Size: 1}} {
		_, err := vllm.Join(t.Context(), c)
		require.ErrorIs(t, err, pgroup.ErrInvalid)
		require.ErrorContains(t, err, says)
	}
}

// TestCancel checks that Join and a verb whose context is cancelled end; repeat.txt has such verbs again.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory(t)
		gs := join(t, s, 2, vllm.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { synctest.Wait(); cancel() }()
		_, err := vllm.RecvObj[string](ctx, gs[1], 0)
		failure(t, err, pgroup.ErrCancelled, "cancelled here")
		require.ErrorIs(t, err, context.Canceled)
		_, err = vllm.Join(ctx, vllm.Config{Rank: 1, Size: 2, Store: s})
		require.ErrorIs(t, err, context.Canceled)
	})
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
