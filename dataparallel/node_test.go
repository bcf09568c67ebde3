package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// TestViews lets workers join, leave and rejoin while the others train. Ranks are dense in each
// view, and all ranks of a view get the same error when it ends. All connections use TLS.
func TestViews(t *testing.T) {
	srv, files := withTLS(t)
	at := "muster://" + serve(t, srv)
	var nodes []*dataparallel.WorkerNode
	for i, id := range []string{"a", "b", "c", "d"} {
		n := newNode(t, at, id, 2, 3)
		n.TLS, n.Host, n.Listen = files, apart(i/2), "127.0.0.1"
		nodes = append(nodes, n)
	}
	a, b, c, d := nodes[0], nodes[1], nodes[2], nodes[3]
	start(t, a, b)
	steps(t, a, b)

	same(t, changes(t, func() { start(t, c) }, a, b), `joined by worker "c"`)
	require.Equal(t, 2, c.Rank())
	steps(t, a, b, c)

	first, second := a, b // the worker that registered first is rank 0
	if b.Rank() == 0 {
		first, second = b, a
	}
	failures := changes(t, func() { require.NoError(t, first.Close()) }, second, c)
	same(t, failures, "rank 0")
	require.Equal(t, [...]int{-1, 0, 1}, [...]int{first.Rank(), second.Rank(), c.Rank()})
	steps(t, second, c)

	same(t, changes(t, func() { start(t, d) }, second, c), `joined by worker "d"`)
	steps(t, second, c, d)
	require.Equal(t, 2, d.Rank())
}

// changes calls do, which ends the view of nodes. The nodes train until then and go on to the next
// view. It returns the errors that they got.
func changes(t *testing.T, do func(), nodes ...*dataparallel.WorkerNode) (failures []*pgroup.RankError) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	all.Go(do)
	for _, n := range nodes {
		all.Go(func() {
			why := failureOf(t, n)
			re, ok := errors.AsType[*pgroup.RankError](why)
			if !assert.True(t, ok, "%v", why) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failures = append(failures, re)
		})
	}
	all.Wait()
	require.Len(t, failures, len(nodes))
	return failures
}

// same checks that all ranks got the same error, with this text.
func same(t *testing.T, failures []*pgroup.RankError, says string) {
	t.Helper()
	for _, re := range failures {
		require.Equal(t, failures[0].Failure, re.Failure)
		require.Contains(t, re.Error()+": "+re.Reason, says)
	}
}

// TestAFailureOfTheCaller checks a node whose view is current, but whose group has failed.
func TestAFailureOfTheCaller(t *testing.T) {
	at := url(t)
	nodes := []*dataparallel.WorkerNode{newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)}
	start(t, nodes...)
	err := nodes[0].Strategy().Barrier(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, nodes[0].Over(err), "it was the caller's own")
	require.False(t, nodes[0].Over(nil))
	require.False(t, nodes[0].Over(nodes[0].Strategy().BroadcastTensor(t.Context(), 3, tensor.New(tensor.F32))))
	for _, n := range nodes {
		<-n.Comm().Group().Context().Done()
	}
	_, err = nodes[0].Next(within(t, 50*time.Millisecond))
	fails(t, err, context.DeadlineExceeded, "view 1 has not ended")
	each(nodes, func(n *dataparallel.WorkerNode) { assert.NoError(t, n.Close()) })
	start(t, nodes...)
	steps(t, nodes...)
}

// TestVerbsOfTheGroupEndWithTheView checks verbs of the view's group and Comm whose contexts do not end:
// they fail when another worker joins, and Over returns true.
func TestVerbsOfTheGroupEndWithTheView(t *testing.T) {
	at, ctx := url(t), t.Context()
	var nodes []*dataparallel.WorkerNode
	for _, id := range []string{"a", "b", "c", "d"} {
		nodes = append(nodes, newNode(t, at, id, 3, 4))
	}
	start(t, nodes[:3]...)
	errs := make(chan error, 3)
	for i, verb := range []func(n *dataparallel.WorkerNode) error{
		func(n *dataparallel.WorkerNode) error { return n.Comm().Barrier(ctx) },
		func(n *dataparallel.WorkerNode) error { return n.Group().Barrier(ctx) },
		func(n *dataparallel.WorkerNode) error {
			<-n.Group().Context().Done()
			return context.Cause(n.Group().Context())
		},
	} {
		go func() {
			err := verb(nodes[i])
			if nodes[i].Over(err) {
				_, err = nodes[i].Next(bounded(t))
			}
			errs <- err
		}()
	}
	start(t, nodes[3])
	require.NoError(t, errors.Join(<-errs, <-errs, <-errs))
	steps(t, nodes...)
}

// TestWhatCloseEnds checks that Close ends a waiting Start, a waiting Next and a waiting verb.
func TestWhatCloseEnds(t *testing.T) {
	at := url(t)
	a := newNode(t, at, "a", 2, 0)
	ended := make(chan error, 1)
	go func() { ended <- a.Start(t.Context()) }()
	testcluster.Eventually(t, soon, func() bool { return a.Member() != nil }, "it registers")
	require.ErrorIs(t, a.Start(bounded(t)), dataparallel.ErrStarted)
	_, err := a.Next(bounded(t))
	require.ErrorIs(t, err, pgroup.ErrBusy)
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-ended, pgroup.ErrClosed)

	b := newNode(t, at, "b", 2, 0)
	start(t, a, b)
	go func() {
		err := pgroup.ErrBusy
		for errors.Is(err, pgroup.ErrBusy) {
			_, err = a.Next(t.Context())
		}
		ended <- err
	}()
	testcluster.Eventually(t, soon, func() bool { _, err := a.Next(within(t, time.Millisecond)); return errors.Is(err, pgroup.ErrBusy) }, "it waits")
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-ended, pgroup.ErrClosed)
	require.NoError(t, b.Close())

	start(t, a, b)
	s := a.Strategy()
	go func() { ended <- s.Barrier(t.Context()) }()
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-ended, pgroup.ErrClosed)
}

func TestStartWithinItsContext(t *testing.T) {
	t.Parallel()
	at := url(t)
	a := newNode(t, at, "a", 2, 0)
	fails(t, a.Start(within(t, time.Second)), context.DeadlineExceeded, `1 of 2 workers are registered: "a"`)
	require.Nil(t, a.Member())

	closed := newNode(t, "muster://127.0.0.1:1", "a", 2, 0)
	fails(t, closed.Start(within(t, 50*time.Millisecond)), context.DeadlineExceeded, "127.0.0.1:1")
	closed.Timeout = 50 * time.Millisecond
	require.ErrorIs(t, closed.Start(t.Context()), context.DeadlineExceeded)

	// The other worker has registered, and does not take part.
	register(t, at, "b", 2, 0)
	fails(t, a.Start(within(t, time.Second)), context.DeadlineExceeded, "missing rank 0")
}

func TestNodesThatMakeNoSense(t *testing.T) {
	s := store.New(new(store.Memory))
	defer s.Close()
	for says, n := range map[string]*dataparallel.WorkerNode{
		"set one of Address and Store": {Worker: worker("a", 1, 0)},
		"one of Address and Store":     {Worker: worker("a", 1, 0), Store: s, Address: "muster://127.0.0.1:1"},
		"Timeout is -1s":               {Worker: worker("a", 1, 0), Store: s, Timeout: -time.Second},
		"not a URL of the form":        {Worker: worker("a", 1, 0), Address: "127.0.0.1:1"},
		"Config.Min is 0":              {Worker: worker("a", 0, 0), Store: s},
	} {
		fails(t, n.Start(bounded(t)), pgroup.ErrInvalid, says)
		require.NoError(t, n.Close())
	}
}

// step averages the ranks of a node's view, and returns the result.
func step(ctx context.Context, s *dataparallel.Strategy) (float64, error) {
	x := []float64{float64(s.Rank())}
	err := s.AllReduceGradients(ctx, map[string]*tensor.Tensor{"rank": tensor.From(x)})
	return x[0], err
}

// steps checks that nodes form one group, with dense ranks.
func steps(t *testing.T, nodes ...*dataparallel.WorkerNode) {
	t.Helper()
	ranks := make([]int, len(nodes))
	var mu sync.Mutex
	each(nodes, func(n *dataparallel.WorkerNode) {
		mean, err := step(bounded(t), n.Strategy())
		assert.NoError(t, err)
		assert.InDelta(t, float64(len(nodes)-1)/2, mean, 1e-9)
		assert.Equal(t, len(nodes), n.Size())
		mu.Lock()
		defer mu.Unlock()
		ranks[n.Rank()]++
	})
	require.Equal(t, repeat(len(nodes), 1), ranks)
}

// failureOf is untilOver, and returns the error that ended the view.
func failureOf(t *testing.T, n *dataparallel.WorkerNode) (why error) {
	t.Helper()
	s := n.Strategy()
	if s == nil {
		return dataparallel.ErrNotStarted
	}
	for why == nil {
		_, why = step(bounded(t), s)
	}
	assert.True(t, n.Over(why), "%v", why)
	s, err := n.Next(bounded(t))
	if assert.NoError(t, err) {
		assert.Same(t, s, n.Strategy())
	}
	return why
}

func TestRefusesToListenInTheOpen(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", "10.0.0.1", ":9001", "[::]:0", "node7:9001", "192.168.1.1:1"} {
		n := newNode(t, "muster://127.0.0.1:1", "a", 1, 0) // no server is contacted
		n.Listen = listen
		fails(t, n.Start(bounded(t)), dataparallel.ErrInsecure, fmt.Sprintf("Listen is %q: set TLS", listen))
		require.Equal(t, -1, n.Rank())
	}
	at := url(t)
	for _, listen := range []string{"127.0.0.1:0", "localhost", "127.0.0.1", "[::1]:0"} {
		n := newNode(t, at, "a", 1, 0)
		n.Listen = listen
		require.NoError(t, n.Start(bounded(t)))
		require.Equal(t, 0, n.Rank())
		require.NoError(t, n.Close())
	}
	// No listen address is configured, and there are two machines.
	a, b := newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)
	a.Host, b.Host = "one", "two"
	// Both refuse. On a busy machine one of them may have left before the other has seen it, which
	// then waits for a second worker: they start again.
	require.Eventually(t, func() bool {
		var refused atomic.Int32
		each([]*dataparallel.WorkerNode{a, b}, func(n *dataparallel.WorkerNode) {
			err := n.Start(within(t, 5*time.Second))
			if errors.Is(err, dataparallel.ErrInsecure) {
				refused.Add(1)
				return
			}
			fails(t, err, context.DeadlineExceeded, "1 of 2 workers are registered")
		})
		return refused.Load() == 2
	}, time.Minute, time.Millisecond)
	a.Insecure, b.Insecure = true, true
	start(t, a, b)
	steps(t, a, b)
}

func TestLifecycle(t *testing.T) {
	at := url(t)
	a, b := newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)
	unstarted := func(n *dataparallel.WorkerNode) {
		require.Equal(t, -1, n.Rank())
		require.Zero(t, n.Size())
		require.Nil(t, n.Strategy())
		require.Nil(t, n.Member())
		_, err := n.Next(bounded(t))
		require.ErrorIs(t, err, dataparallel.ErrNotStarted)
		require.False(t, n.Over(pgroup.ErrLost))
	}
	unstarted(a)
	require.NoError(t, a.Close())
	start(t, a, b)
	require.ErrorIs(t, a.Start(bounded(t)), dataparallel.ErrStarted)
	steps(t, a, b)
	each([]*dataparallel.WorkerNode{a, b}, func(n *dataparallel.WorkerNode) { assert.NoError(t, n.Strategy().Shutdown(bounded(t))) })
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	unstarted(a)
}
