package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

// TestViews lets workers join, leave and rejoin while the others train. Ranks are dense in each
// view, and all ranks of a view get the same error when it ends.
func TestViews(t *testing.T) {
	for _, tls := range []bool{false, true} {
		t.Run(fmt.Sprint("TLS ", tls), func(t *testing.T) {
			at, files := "", (*store.TLSFiles)(nil)
			if tls {
				p := newPapers(t)
				at, files = "muster://"+serve(t, p.server(t)), p.client()
			} else {
				at = url(t)
			}
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
		})
	}
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

func TestReady(t *testing.T) {
	at := url(t)
	a, b := newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)
	starting := make(chan error, 1)
	go func() { starting <- a.Start(bounded(t)) }()
	testcluster.Eventually(t, soon, func() bool { return a.Member() != nil }, "it registers")
	is := func(n *dataparallel.WorkerNode, code int, says string) {
		t.Helper()
		got, text := ready(n)
		require.Equal(t, code, got, text)
		require.Contains(t, text, says)
	}
	is(a, http.StatusServiceUnavailable, `worker "a": waiting for the workers of the view`)
	require.NoError(t, b.Start(bounded(t)))
	require.NoError(t, <-starting)
	is(a, http.StatusOK, "rank 0 of 2 in view 1")
	is(b, http.StatusOK, "rank 1 of 2 in view 1")
	require.NoError(t, b.Close())
	is(b, http.StatusServiceUnavailable, "not started")
	testcluster.Eventually(t, soon, func() bool { code, _ := ready(a); return code != http.StatusOK }, "it is not ready")
	is(a, http.StatusServiceUnavailable, "rank 1")

	each([]*dataparallel.WorkerNode{a, b}, func(n *dataparallel.WorkerNode) {
		if n == b {
			assert.NoError(t, b.Start(bounded(t)))
			return
		}
		untilOver(t, a)
	})
	is(a, http.StatusOK, "rank 0 of 2 in view")
}

// TestReadyAfterAFailure checks the readiness of a node whose view is current, but whose group has
// failed.
func TestReadyAfterAFailure(t *testing.T) {
	at := url(t)
	nodes := []*dataparallel.WorkerNode{newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)}
	start(t, nodes...)
	err := nodes[0].Strategy().Barrier(within(t, 20*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, nodes[0].Over(err), "it was the caller's own")
	for _, n := range nodes {
		testcluster.Eventually(t, soon, func() bool { code, _ := ready(n); return code != http.StatusOK }, "it is not ready")
	}
	_, err = nodes[0].Next(within(t, 50*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "view 1 has not ended")
	each(nodes, func(n *dataparallel.WorkerNode) { assert.NoError(t, n.Close()) })
	start(t, nodes...)
	steps(t, nodes...)
}

func TestOverIsOfTheView(t *testing.T) {
	at := url(t)
	n := newNode(t, at, "a", 1, 0)
	start(t, n)
	require.False(t, n.Over(nil))
	require.False(t, n.Over(errors.New("the loss is NaN")))
	require.False(t, n.Over(n.Strategy().BroadcastTensor(t.Context(), 3, tensor.New(tensor.F32))))
}

// TestVerbsOfTheGroupEndWithTheView checks verbs of the view's group and Comm whose contexts do not end:
// they fail when another worker joins, and Over returns true.
func TestVerbsOfTheGroupEndWithTheView(t *testing.T) {
	at := url(t)
	a, b, c, d := newNode(t, at, "a", 2, 4), newNode(t, at, "b", 2, 4), newNode(t, at, "c", 2, 4), newNode(t, at, "d", 2, 4)
	start(t, a, b)
	ctx := t.Context()
	errs := make(chan error, 4)
	meets := func(n *dataparallel.WorkerNode, verb func(*dataparallel.WorkerNode) error) {
		err := verb(n)
		if !n.Over(err) {
			errs <- fmt.Errorf("Over is false: %w", err)
			return
		}
		_, err = n.Next(bounded(t))
		errs <- err
	}
	barrier := func(n *dataparallel.WorkerNode) error { return n.Group().Barrier(ctx) }
	ends := func(n *dataparallel.WorkerNode) error {
		<-n.Group().Context().Done()
		return context.Cause(n.Group().Context())
	}
	go meets(a, barrier)
	go meets(b, ends)
	start(t, c)
	require.NoError(t, errors.Join(<-errs, <-errs))
	require.Equal(t, []int{3, 3, 3}, []int{a.Size(), b.Size(), c.Size()})

	go meets(a, func(n *dataparallel.WorkerNode) error { return n.Comm().Barrier(ctx) })
	go meets(b, barrier)
	go meets(c, ends)
	start(t, d)
	require.NoError(t, errors.Join(<-errs, <-errs, <-errs))
	require.Equal(t, []int{4, 4, 4, 4}, []int{a.Size(), b.Size(), c.Size(), d.Size()})
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
	err := a.Start(within(t, time.Second))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `1 of 2 workers are registered: "a"`)
	require.Nil(t, a.Member())

	closed := newNode(t, "muster://127.0.0.1:1", "a", 2, 0)
	err = closed.Start(within(t, 50*time.Millisecond))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "127.0.0.1:1")
	closed.Timeout = 50 * time.Millisecond
	require.ErrorIs(t, closed.Start(t.Context()), context.DeadlineExceeded)

	// The other worker has registered, and does not take part.
	s, err := store.Open(bounded(t), at)
	require.NoError(t, err)
	defer s.Close()
	m, err := membership.Join(bounded(t), s, worker("b", 2, 0))
	require.NoError(t, err)
	defer m.Close()
	err = a.Start(within(t, time.Second))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "missing rank 0")
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
		err := n.Start(bounded(t))
		require.ErrorIs(t, err, pgroup.ErrInvalid)
		require.ErrorContains(t, err, says)
		require.NoError(t, n.Close())
	}
}
