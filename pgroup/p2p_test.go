package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

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
		te, is := errors.AsType[*pgroup.TypeError](err)
		if !is || te.Sent != "string" || te.Want != "pgroup_test.config" || !errors.Is(err, pgroup.ErrMismatch) {
			t.Errorf("rank %d: got %v", g.Rank(), err)
		}
		if _, err := pgroup.Recv[[]byte](t.Context(), g, self); !errors.Is(err, pgroup.ErrMismatch) {
			t.Errorf("rank %d: text as bytes: %v", g.Rank(), err)
		}
		text, err := pgroup.Recv[string](t.Context(), g, self)
		ok(t, g, "recv", err)
		same(t, g, "recv", text, "text")
		raw, err := pgroup.Recv[any](t.Context(), g, self)
		ok(t, g, "recv any", err)
		same(t, g, "recv any", string(raw.([]byte)), "raw")
		if _, err := pgroup.Recv[[]byte](t.Context(), g, self); !errors.Is(err, pgroup.ErrMismatch) {
			t.Errorf("rank %d: an encoded object as bytes: %v", g.Rank(), err)
		}
		m, err := pgroup.Recv[map[string]int](t.Context(), g, self)
		ok(t, g, "any as a map", err)
		same(t, g, "any as a map", m["k"], 1)
	}, 1, 2)
}

func TestPeerOutOfRange(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		for _, peer := range []int{-1, g.Size(), 7} {
			err := pgroup.Send(t.Context(), g, peer, 1)
			word := fmt.Sprintf("rank %d of a group of %d", peer, g.Size())
			if !errors.Is(err, pgroup.ErrInvalid) || !strings.Contains(err.Error(), word) {
				t.Errorf("send to %d: %v", peer, err)
			}
			_, err = pgroup.Recv[int](t.Context(), g, peer)
			if !errors.Is(err, pgroup.ErrInvalid) || !strings.Contains(err.Error(), word) {
				t.Errorf("recv from %d: %v", peer, err)
			}
		}
	}, 1, 4)
}

func TestUnsendableObjects(t *testing.T) {
	ranks(t, 1, anyStore, func(t *testing.T, g *pgroup.Group) {
		assert.ErrorIs(t, pgroup.Send(t.Context(), g, 0, make(chan int)), pgroup.ErrInvalid)
		assert.ErrorIs(t, pgroup.Send(t.Context(), g, 0, make([]byte, 16<<20+1)), pgroup.ErrTooLarge)
		ok(t, g, "just enough", pgroup.Send(t.Context(), g, 0, make([]byte, 16<<20)))
		got, err := pgroup.Recv[[]byte](t.Context(), g, 0)
		ok(t, g, "just enough", err)
		same(t, g, "just enough", len(got), 16<<20)
	})
}

// bubble runs body in a bubble of synthetic time, on two ranks that share a memory store.
func bubble(t *testing.T, edit func(*pgroup.Config), body func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		at := func(t *testing.T) func(int) pgroup.Config {
			config := inMemory(t)
			return func(rank int) pgroup.Config {
				c := config(rank)
				if edit != nil {
					edit(&c)
				}
				return c
			}
		}
		ranks(t, 2, at, body)
	})
}

func TestSecondRecvIsBusy(t *testing.T) {
	bubble(t, nil, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			return
		}
		first := make(chan error)
		go func() {
			_, err := pgroup.Recv[int](t.Context(), g, 0)
			first <- err
		}()
		synctest.Wait()
		if _, err := pgroup.Recv[int](t.Context(), g, 0); !errors.Is(err, pgroup.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
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
