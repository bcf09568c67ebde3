package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
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

// onPop is an engine that cancels a call right after it has popped.
type onPop struct {
	store.Engine
	cancel context.CancelFunc
}

func (e *onPop) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	err := e.Engine.Do(ctx, req, rep)
	if req.Op == wire.OpPop {
		e.cancel()
		return errors.Join(err, ctx.Err())
	}
	return err
}

// TestPopThatIsCancelled checks that a context that ends in the middle of a Pop loses no value.
func TestPopThatIsCancelled(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	ctx, cancel := context.WithCancel(bounded(t))
	s := store.New(&onPop{m, cancel})
	require.NoError(t, s.Push(ctx, "q", []byte("first")))
	v, err := s.Pop(ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "first", string(v))
	require.ErrorIs(t, ctx.Err(), context.Canceled)
	require.Zero(t, m.Keys())
}

// TestLargeAnswersOfIdleSessions checks that the recorded replies of sessions that are idle do not
// count against the memory that other sessions may use.
func TestLargeAnswersOfIdleSessions(t *testing.T) {
	const n, size = 24, 1 << 20
	ctx := testcluster.Within(t, 30*time.Second)
	addr := testcluster.Serve(t, &store.Server{Engine: &store.Memory{Limits: store.Limits{Held: n * size / 2, HeldOf: n * size / 2}}})
	boss := dial(t, addr)
	for range n {
		s := dial(t, addr)
		require.NoError(t, boss.Push(ctx, "q", make([]byte, size)))
		v, err := s.Pop(ctx, "q")
		require.NoError(t, err)
		require.Len(t, v, size)
		require.NoError(t, s.Set(ctx, "k", nil, nil)) // its sequence numbers advance
		require.NoError(t, boss.Push(ctx, "q", make([]byte, size)))
		_, err = s.Pop(ctx, "q") // its last call
		require.NoError(t, err)
	}
	testcluster.Eventually(t, 10*time.Second, func() bool {
		short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
		defer stop()
		_, err := boss.Wait(short, "nothing")
		return !errors.Is(err, store.ErrFull)
	}, "what idle sessions have popped still counts")
}
