package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func ExampleStore_Push() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	defer s.Close()
	_ = s.Push(ctx, "work", []byte("first"))
	_ = s.Push(ctx, "work", []byte("second"))
	n, _ := s.QueueLen(ctx, "work")
	v, _ := s.Pop(ctx, "work")
	fmt.Printf("%d, and the first is %q\n", n, v)
	// Output: 2, and the first is "first"
}

func ExampleStore_TryPop() {
	s := store.New(new(store.Memory))
	defer s.Close()
	_, n, err := s.TryPop(context.Background(), "work")
	fmt.Println(n, err)
	// Output: 0 <nil>
}

// What several push, several pop: each value once, and those of one in their order.
func TestQueue(t *testing.T) {
	const pushers, poppers, each = 4, 3, 60
	s := serve(t, &store.Server{}, tcp)
	ctx := bounded(t)
	got := make(chan string, pushers*each)
	var all sync.WaitGroup
	for i := range pushers {
		c := s.client(t)
		all.Go(func() {
			for k := range each {
				assert.NoError(t, c.Push(ctx, "q", fmt.Appendf(nil, "%d %d", i, k)))
			}
		})
	}
	for range poppers {
		c := s.client(t)
		all.Go(func() {
			for range pushers * each / poppers {
				v, err := c.Pop(ctx, "q")
				assert.NoError(t, err)
				got <- string(v)
			}
		})
	}
	all.Wait()
	close(got)
	seen := map[string]bool{}
	for v := range got {
		seen[v] = true
	}
	require.Len(t, seen, pushers*each)
	for k, err := range s.client(t).Keys(ctx, "") {
		require.NoError(t, err)
		t.Errorf("%q is left", k)
	}
}

func TestQueueIsFIFO(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	s, ctx := store.New(m), bounded(t)
	require.NoError(t, s.Set(ctx, "q", []byte("a key is no queue"), nil))
	for round := range 3 {
		for i := range 20 {
			require.NoError(t, s.Push(ctx, "q", fmt.Appendf(nil, "%d", i)))
		}
		for i := range 20 {
			v, n, err := s.TryPop(ctx, "q")
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(v), "round %d", round)
			require.Equal(t, 20-i, n)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.Pop(ctx, "q")
	require.ErrorIs(t, err, context.Canceled)
	v, err := s.Get(bounded(t), "q")
	require.NoError(t, err)
	require.Equal(t, "a key is no queue", string(v))
}

// onSwap cancels a call that has just swapped.
type onSwap struct {
	store.Engine
	cancel context.CancelFunc
}

func (e *onSwap) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	err := e.Engine.Do(ctx, req, rep)
	if req.Op == wire.OpSwap {
		e.cancel()
	}
	return err
}

// A ctx that ends in the middle of a Pop loses nothing.
func TestPopThatIsCancelled(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	ctx, cancel := context.WithCancel(bounded(t))
	s := store.New(&onSwap{m, cancel})
	require.NoError(t, s.Push(ctx, "q", []byte("first")))
	v, err := s.Pop(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "first", string(v))
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.Zero(t, m.Keys())
}

// What somebody has set in the place of a queue is an error, not a queue that is there and has nothing in it.
func TestNoQueue(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	s, ctx := store.New(m), bounded(t)
	for _, v := range []string{"", "x", "123456789"} {
		require.NoError(t, s.Set(ctx, store.QueueKey("q"), []byte(v), nil))
		_, err := s.Pop(ctx, "q")
		require.ErrorIs(t, err, store.ErrInvalid)
		_, err = s.QueueLen(ctx, "q")
		require.ErrorContains(t, err, `"q"`)
	}
}

// A queue does not become longer than what can be popped.
func TestFullQueue(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	s, ctx := store.New(m), bounded(t)
	require.NoError(t, s.Push(ctx, "q", []byte("first")))
	_, err := s.Append(ctx, store.QueueKey("q"), make([]byte, wire.MaxValue/4-8))
	require.NoError(t, err)
	require.ErrorIs(t, s.Push(ctx, "q", []byte("one too many")), store.ErrFull)
	require.Equal(t, 2, m.Keys(), "it has left nothing")
	v, n, err := s.TryPop(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, wire.MaxValue/4/8, n)
	require.Equal(t, "first", string(v))
	require.NoError(t, s.Push(ctx, "q", []byte("there is room again")))
}

// The TTL that Add gives to what it makes is kept on the disk with it.
func TestAddWithATTLIsKept(t *testing.T) {
	dir, ctx := t.TempDir(), bounded(t)
	m := &store.Memory{Dir: dir}
	err := store.New(m).Do(ctx, &wire.Request{Op: wire.OpAdd, Key: "n", Delta: 1, TTL: time.Hour}, new(wire.Reply))
	require.NoError(t, err)
	require.NoError(t, m.Close())
	m = &store.Memory{Dir: dir}
	defer m.Close()
	var rep wire.Reply
	require.NoError(t, store.New(m).Do(ctx, &wire.Request{Op: wire.OpList}, &rep))
	require.Equal(t, []string{"n"}, rep.Keys)
	require.InDelta(t, time.Hour, rep.Nums[1], float64(time.Minute))
}
