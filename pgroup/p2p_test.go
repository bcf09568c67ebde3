package pgroup_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
)

func TestTypeMismatchNamesBothAndKeepsTheMessage(t *testing.T) {
	type blob []byte
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		self := g.Rank()
		ok(t, g, "send", pgroup.Send(t.Context(), g, self, "text"))
		ok(t, g, "send", pgroup.Send(t.Context(), g, self, blob("raw")))
		ok(t, g, "send", pgroup.Send[any](t.Context(), g, self, map[string]any{"k": int64(1)}))
		_, err := pgroup.Recv[config](t.Context(), g, self)
		te, _ := errors.AsType[*pgroup.TypeError](err)
		require.NotNil(t, te, "%v", err)
		assert.Equal(t, []string{"string", "pgroup_test.config"}, []string{te.Sent, te.Want})
		assert.ErrorIs(t, err, pgroup.ErrMismatch)
		_, err = pgroup.Recv[[]byte](t.Context(), g, self)
		assert.ErrorIs(t, err, pgroup.ErrMismatch, "text as bytes")
		text, err := pgroup.Recv[string](t.Context(), g, self)
		ok(t, g, "recv", err)
		equal(t, g, "recv", text, "text")
		raw, err := pgroup.Recv[any](t.Context(), g, self)
		ok(t, g, "recv any", err)
		equal(t, g, "recv any", string(raw.([]byte)), "raw")
		_, err = pgroup.Recv[[]byte](t.Context(), g, self)
		assert.ErrorIs(t, err, pgroup.ErrMismatch, "an encoded object as bytes")
		m, err := pgroup.Recv[map[string]int](t.Context(), g, self)
		ok(t, g, "any as a map", err)
		equal(t, g, "any as a map", m["k"], 1)
	}, 1, 2)
}

func TestUnsendableObjects(t *testing.T) {
	ranks(t, 1, anyStore, func(t *testing.T, g *pgroup.Group) {
		assert.ErrorIs(t, pgroup.Send(t.Context(), g, 0, make(chan int)), pgroup.ErrInvalid)
		assert.ErrorIs(t, pgroup.Send(t.Context(), g, 0, make([]byte, 16<<20+1)), pgroup.ErrTooLarge)
		ok(t, g, "just enough", pgroup.Send(t.Context(), g, 0, make([]byte, 16<<20)))
		got, err := pgroup.Recv[[]byte](t.Context(), g, 0)
		ok(t, g, "just enough", err)
		equal(t, g, "just enough", len(got), 16<<20)
	})
}

// bubble runs body in a bubble of synthetic time, on two ranks that share a memory store.
func bubble(t *testing.T, edit func(*pgroup.Config), body func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { ranks(t, 2, place(inMemory).with(edit), body) })
}

func TestSecondRecvIsBusy(t *testing.T) {
	bubble(t, func(*pgroup.Config) {}, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			return
		}
		first := make(chan error)
		go func() {
			_, err := pgroup.Recv[int](t.Context(), g, 0)
			first <- err
		}()
		synctest.Wait()
		_, err := pgroup.Recv[int](t.Context(), g, 0)
		assert.ErrorIs(t, err, pgroup.ErrBusy)
		ok(t, g, "send", pgroup.Send(t.Context(), g, 0, 1))
		ok(t, g, "first", <-first)
	})
}

func TestMessagesOfAnEndedContext(t *testing.T) {
	ranks(t, 1, inMemory, func(t *testing.T, g *pgroup.Group) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		rankError(t, g, pgroup.Send(ctx, g, 0, 1), context.Canceled, "cancelled")
		_, err := pgroup.Recv[int](ctx, g, 0)
		rankError(t, g, err, pgroup.ErrCancelled)
	})
}
