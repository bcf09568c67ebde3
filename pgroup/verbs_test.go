package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

type config struct {
	Layer string
	Rank  int
	Shape []int
	Extra map[string]any
}

// TestVerbs calls each verb with each root, and with payloads of each size.
func TestVerbs(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		for i := range max(4, g.Size()) {
			checkVerbs(t, g, i)
		}
	})
}

// checkVerbs calls each collective verb once, with payloads of several sizes.
func checkVerbs(t *testing.T, g *pgroup.Group, i int) {
	t.Helper()
	ctx, n := t.Context(), g.Size()
	object := func(rank int) string {
		return strings.Repeat(fmt.Sprintf("%d of rank %d;", i, rank), []int{0, 1, 100, 5000}[i%4])
	}
	every, parts := make([]string, n), make([]string, n)
	for rank := range n {
		every[rank], parts[rank] = object(rank), fmt.Sprint(object(g.Rank()), " for ", rank)
	}
	root := i % n
	got, err := pgroup.Broadcast(ctx, g, root, object(g.Rank()))
	require.NoError(t, err)
	require.Equal(t, object(root), got, "broadcast")
	gathered, err := pgroup.AllGather(ctx, g, object(g.Rank()))
	require.NoError(t, err)
	require.Equal(t, every, gathered, "all-gather")
	gathered, err = pgroup.Gather(ctx, g, root, object(g.Rank()))
	require.NoError(t, err)
	if g.Rank() == root {
		require.Equal(t, every, gathered, "gather")
	} else {
		require.Nil(t, gathered)
	}
	part, err := pgroup.Scatter(ctx, g, root, parts)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(object(root), " for ", g.Rank()), part, "scatter")
	exchanged, err := pgroup.AllToAll(ctx, g, parts)
	require.NoError(t, err)
	for rank := range n {
		require.Equal(t, fmt.Sprint(object(rank), " for ", g.Rank()), exchanged[rank], "all-to-all")
	}
	sum, err := pgroup.AllReduce(ctx, g, pgroup.Sum, i, g.Rank())
	require.NoError(t, err)
	require.Equal(t, []int{n * i, n * (n - 1) / 2}, sum, "all-reduce")
	require.NoError(t, g.Barrier(ctx))
}

func TestBytesStructsAndArrays(t *testing.T) {
	type blob []byte
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		var id [128]byte
		var raw, none []byte
		var named blob
		if g.Rank() == 0 {
			id[0], id[127] = 1, 2
			raw, named = []byte("raw"), blob("named")
		}
		id, err := pgroup.Broadcast(t.Context(), g, 0, id)
		ok(t, g, "array", err)
		raw, err = pgroup.Broadcast(t.Context(), g, 0, raw)
		ok(t, g, "bytes", err)
		named, err = pgroup.Broadcast(t.Context(), g, 0, named)
		ok(t, g, "named bytes", err)
		none, err = pgroup.Broadcast(t.Context(), g, 0, none)
		ok(t, g, "no bytes", err)
		object, err := pgroup.Broadcast(t.Context(), g, 0, config{Layer: "l", Rank: 7, Shape: []int{g.Rank(), 2}, Extra: map[string]any{"b": []byte("x")}})
		ok(t, g, "struct", err)
		assert.Equal(t, config{Layer: "l", Rank: 7, Shape: []int{0, 2}, Extra: map[string]any{"b": []byte("x")}}, object)
		if id[0] != 1 || id[127] != 2 || string(raw) != "raw" || string(named) != "named" || len(none) != 0 {
			t.Errorf("rank %d: got %v, %q, %q, %q", g.Rank(), id, raw, named, none)
		}
	})
}

func TestAllReduce(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		n, sum, product := g.Size(), 0, 1
		for i := range n {
			sum, product = sum+i+1, product*(i+1)
		}
		for op := pgroup.Sum; op <= pgroup.Avg; op++ {
			want := map[pgroup.Op]int{pgroup.Sum: sum, pgroup.Product: product, pgroup.Min: 1, pgroup.Max: n, pgroup.Avg: sum / n}[op]
			reduces(t, g, op, want)
			reduces(t, g, op, int32(want))
			reduces(t, g, op, uint64(want))
			reduces(t, g, op, uint32(want))
			if op != pgroup.Avg {
				reduces(t, g, op, float32(want))
				reduces(t, g, op, float64(want))
			}
		}
		avg, err := pgroup.AllReduce(t.Context(), g, pgroup.Avg, float64(g.Rank()+1), math.Inf(1))
		ok(t, g, "avg", err)
		equal(t, g, "avg", avg, []float64{float64(sum) / float64(n), math.Inf(1)})
		signed, err := pgroup.AllReduce(t.Context(), g, pgroup.Avg, int32(2_000_000_000), -2_000_000_000)
		ok(t, g, "avg", err)
		equal(t, g, "a sum too large for the type", signed, []int32{2_000_000_000, -2_000_000_000})
		truncated, err := pgroup.AllReduce(t.Context(), g, pgroup.Avg, -g.Rank())
		ok(t, g, "avg", err)
		equal(t, g, "of 4 ranks: -1.5, rounded to zero", truncated, []int{-((n - 1) / 2)})
		unsigned, err := pgroup.AllReduce(t.Context(), g, pgroup.Avg, uint32(4_000_000_000))
		ok(t, g, "avg", err)
		equal(t, g, "avg", unsigned, []uint32{4_000_000_000})
		none, err := pgroup.AllReduce[float64](t.Context(), g, pgroup.Sum)
		ok(t, g, "nothing", err)
		equal(t, g, "nothing", len(none), 0)
	})
}

// reduces checks the reduction of the numbers from 1 to the size.
func reduces[T pgroup.Number](t *testing.T, g *pgroup.Group, op pgroup.Op, want T) {
	t.Helper()
	got, err := pgroup.AllReduce(t.Context(), g, op, T(g.Rank()+1))
	ok(t, g, op.String(), err)
	equal(t, g, op.String(), got, []T{want})
}

// panics is a codec, and a trace, that panics for some objects.
type panics struct{ wire.Codec }

func (p panics) Append(b []byte, v any) ([]byte, error) {
	if s, ok := v.(*string); ok && *s == "encoding" {
		panic("no encoder")
	}
	return p.Codec.Append(b, v)
}

func (p panics) Parse(b []byte, v any) error {
	if string(b[1:]) == "decoding" {
		panic("no decoder")
	}
	return p.Codec.Parse(b, v)
}

func (panics) Record(_ context.Context, e trace.Event) {
	if e.Op == "pgroup.gather" {
		panic("no trace")
	}
}

// TestPanics checks that a panic of a user's codec or trace leaves no rank waiting, and no group
// locked.
func TestPanics(t *testing.T) {
	at := place(inMemory).with(func(c *pgroup.Config) {
		if c.Rank == 1 {
			c.Codec, c.Trace = panics{wire.MsgPack}, panics{}
		}
	})
	ranks(t, 3, at, func(t *testing.T, g *pgroup.Group) {
		ctx := t.Context()
		mine := map[bool]string{true: "encoding", false: "fine"}[g.Rank() == 1]
		_, err := pgroup.AllGather(ctx, g, mine)
		rankError(t, g, err, pgroup.ErrInvalid, "rank 1: invalid: panic: no encoder")
		_, err = pgroup.AllToAll(ctx, g, []string{mine, mine, mine})
		rankError(t, g, err, pgroup.ErrInvalid, "rank 1: invalid: the object for rank 0: panic: no encoder")
		_, err = pgroup.AllGather(ctx, g, "decoding")
		if g.Rank() == 1 {
			assert.ErrorContains(t, err, "the object of rank 0: panic: no decoder")
			assert.ErrorIs(t, pgroup.Send(ctx, g, 0, "encoding"), pgroup.ErrInvalid)
			assert.PanicsWithValue(t, "no trace", func() { _, _ = pgroup.Gather(ctx, g, 0, 1) })
		} else {
			ok(t, g, "allgather", err)
			_, err = pgroup.Gather(ctx, g, 0, 1)
			ok(t, g, "gather", err)
		}
		ok(t, g, "barrier", g.Barrier(ctx))
	})
}

// TestRefusingRankIsNamed checks that a rank which cannot take part in a verb is named to all
// ranks, with the reason.
func TestRefusingRankIsNamed(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		bad := g.Rank() == 1
		for _, call := range []struct {
			verb func() error
			is   error
			word string
		}{
			{func() error {
				var v any = "fine"
				if bad {
					v = make(chan int)
				}
				_, err := pgroup.AllGather(t.Context(), g, holder{v})
				return err
			}, pgroup.ErrInvalid, "a chan int has no bytes"},
			{func() error {
				_, err := pgroup.AllGather(t.Context(), g, make([]byte, map[bool]int{true: 17 << 20}[bad]))
				return err
			}, pgroup.ErrTooLarge, "17.0 MiB, the limit is 16 MiB: send it in slices, or "},
			{func() error {
				_, err := pgroup.AllReduce(t.Context(), g, pgroup.Sum, make([]float32, map[bool]int{true: 5 << 20}[bad])...)
				return err
			}, pgroup.ErrTooLarge, "20.0 MiB"},
			{func() error {
				vs := make([]holder, g.Size())
				for i := range vs {
					vs[i].V = "fine"
				}
				if bad {
					vs[1].V = make(chan int)
				}
				_, err := pgroup.AllToAll(t.Context(), g, vs)
				return err
			}, pgroup.ErrInvalid, "the object for rank 1: "},
			{func() error {
				vs := make([][]byte, g.Size())
				if bad {
					vs[0], vs[1] = make([]byte, 9<<20), make([]byte, 9<<20)
				}
				_, err := pgroup.AllToAll(t.Context(), g, vs)
				return err
			}, pgroup.ErrTooLarge, "all objects together"},
			{func() error {
				_, err := pgroup.AllToAll(t.Context(), g, make([]int, g.Size()+map[bool]int{true: 1}[bad]))
				return err
			}, pgroup.ErrInvalid, "objects for a group of"},
		} {
			err := call.verb()
			v := rankError(t, g, err, call.is, "rank 1", call.word)
			equal(t, g, "by", v.By, 1)
			every, err := pgroup.AllGather(t.Context(), g.Channel("missing"), v.Missing)
			ok(t, g, "the missing ranks", err)
			for _, missing := range every {
				equal(t, g, "missing", fmt.Sprint(missing), fmt.Sprint(v.Missing))
			}
			ok(t, g, "the group goes on", g.Barrier(t.Context()))
		}
	}, 2, 4)
}

// holder contains a value that cannot be encoded, which only an attempt shows.
type holder struct{ V any }

func (h holder) MarshalBinary() ([]byte, error) {
	if s, ok := h.V.(string); ok {
		return []byte(s), nil
	}
	return nil, fmt.Errorf("a %T has no bytes", h.V)
}

func (h *holder) UnmarshalBinary(b []byte) error {
	h.V = string(b)
	return nil
}

// picky is a codec that cannot decode the data of rank 1.
type picky struct{ wire.Codec }

func (p picky) Parse(b []byte, v any) error {
	if err := p.Codec.Parse(b, v); err != nil {
		return err
	}
	if n, is := v.(*int); is && *n == 1 {
		return errors.New("I do not like it")
	}
	return nil
}

// TestUnreadableObjects checks that a decoding error of one rank is its own error, and not the
// outcome of the verb: the others get their results.
func TestUnreadableObjects(t *testing.T) {
	at := place(anyStore).with(func(c *pgroup.Config) {
		if c.Rank == 0 {
			c.Codec = picky{wire.MsgPack}
		}
	})
	ranks(t, 2, at, func(t *testing.T, g *pgroup.Group) {
		_, every := pgroup.AllGather(t.Context(), g, g.Rank())
		_, one := pgroup.Broadcast(t.Context(), g, 1, g.Rank())
		_, part := pgroup.Scatter(t.Context(), g, 1, []int{1, 2})
		ok(t, g, "send", pgroup.Send(t.Context(), g, 0, g.Rank()))
		if g.Rank() == 1 {
			ok(t, g, "others", errors.Join(every, one, part))
			return
		}
		says(t, every, nil, "allgather #1", "the object of rank 1", "I do not like it")
		says(t, one, nil, "broadcast #2", "the object of rank 1")
		says(t, part, nil, "scatter #3", "the object of rank 1")
		_, err := pgroup.Recv[int](t.Context(), g, 1)
		says(t, err, nil, "recv from 1", "I do not like it")
		v, err := pgroup.Recv[any](t.Context(), g, 1) // it is still available
		ok(t, g, "recv any", err)
		equal(t, g, "recv any", v, any(int64(1)))
	})
}

func TestRankOutOfRange(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		for _, rank := range []int{-1, g.Size(), 99} {
			word := fmt.Sprintf("root %d of a group of %d", rank, g.Size())
			_, err := pgroup.Broadcast(t.Context(), g, rank, 1)
			rankError(t, g, err, pgroup.ErrInvalid, word)
			_, err = pgroup.Gather(t.Context(), g, rank, 1)
			rankError(t, g, err, pgroup.ErrInvalid, word)
			_, err = pgroup.Scatter(t.Context(), g, rank, []int{1})
			rankError(t, g, err, pgroup.ErrInvalid, word)
			word = fmt.Sprintf("rank %d of a group of %d", rank, g.Size())
			says(t, pgroup.Send(t.Context(), g, rank, 1), pgroup.ErrInvalid, word)
			_, err = pgroup.Recv[int](t.Context(), g, rank)
			says(t, err, pgroup.ErrInvalid, word)
		}
		_, err := pgroup.AllReduce(t.Context(), g, pgroup.Op(9), 1)
		rankError(t, g, err, pgroup.ErrInvalid, "no reduction 9")
		ok(t, g, "the group goes on", g.Barrier(t.Context()))
	})
}

// slow is an object whose encoding signals that it has begun, and waits.
type slow struct{ begun, goOn chan struct{} }

func (s slow) MarshalBinary() ([]byte, error) {
	close(s.begun)
	<-s.goOn
	return nil, nil
}

func (s *slow) UnmarshalBinary([]byte) error { return nil }

// beginSlow begins an operation of g, which goes on when finish is called.
func beginSlow(t *testing.T, g *pgroup.Group) (finish func() error) {
	t.Helper()
	s := slow{make(chan struct{}), make(chan struct{})}
	ended := later(func() error { _, err := pgroup.AllGather(t.Context(), g, s); return err })
	<-s.begun
	return func() error {
		close(s.goOn)
		return <-ended
	}
}

func TestSecondCollectiveIsBusy(t *testing.T) {
	everywhere(t, func(t *testing.T, g *pgroup.Group) {
		finish := beginSlow(t, g)
		says(t, g.Barrier(t.Context()), pgroup.ErrBusy, "barrier")
		ok(t, g, "another channel", g.Channel("x").Barrier(t.Context()))
		ok(t, g, "first", finish())
		ok(t, g, "the next", g.Barrier(t.Context()))
	})
}

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
		first := later(func() error { _, err := pgroup.Recv[int](t.Context(), g, 0); return err })
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
