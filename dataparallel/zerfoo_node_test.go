package dataparallel_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

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

// untilOver steps until the view has ended, and goes on to the next one.
func untilOver(t *testing.T, n *dataparallel.WorkerNode) {
	t.Helper()
	assert.Error(t, failureOf(t, n))
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

func TestZerfooCertificates(t *testing.T) {
	p := newPapers(t)
	at := "muster://" + serve(t, p.server(t))

	for name, files := range map[string]*store.TLSFiles{
		"no TLS": nil, "no certificate": {CA: p.path("ca")}, "certificate of another CA": {CA: p.path("ca"), Cert: newPapers(t).path("worker")},
	} {
		n := newNode(t, at, name, 2, 0)
		if n.TLS = files; files != nil && files.Cert != "" {
			files.Key = strings.Replace(files.Cert, "worker", "worker-key", 1)
		}
		err := n.Start(within(t, 5*time.Second))
		require.ErrorIs(t, err, store.ErrDenied, name)
		require.Equal(t, -1, n.Rank())
	}

	nodes := []*dataparallel.WorkerNode{newNode(t, at, "a", 2, 0), newNode(t, at, "b", 2, 0)}
	for i, n := range nodes {
		n.TLS, n.Host, n.Listen = p.client(), apart(i), "127.0.0.1:0"
	}
	start(t, nodes...)
	steps(t, nodes...)
}

func TestZerfooRefusesToListenInTheOpen(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", "10.0.0.1", ":9001", "[::]:0", "node7:9001", "192.168.1.1:1"} {
		n := newNode(t, "muster://127.0.0.1:1", "a", 1, 0) // no server is contacted
		n.Listen = listen
		err := n.Start(bounded(t))
		require.ErrorIs(t, err, dataparallel.ErrInsecure)
		require.ErrorContains(t, err, fmt.Sprintf("Listen is %q: set TLS", listen))
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
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, "1 of 2 workers are registered")
		})
		return refused.Load() == 2
	}, time.Minute, time.Millisecond)
	a.Insecure, b.Insecure = true, true
	start(t, a, b)
	steps(t, a, b)
}

func TestZerfooLifecycle(t *testing.T) {
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
		code, text := ready(n)
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Contains(t, text, "not started")
	}
	unstarted(a)
	require.NoError(t, a.Close())
	for range 3 { // restarts
		start(t, a, b)
		require.ErrorIs(t, a.Start(bounded(t)), dataparallel.ErrStarted)
		steps(t, a, b)
		each([]*dataparallel.WorkerNode{a, b}, func(n *dataparallel.WorkerNode) { assert.NoError(t, n.Strategy().Shutdown(bounded(t))) })
		require.NoError(t, a.Close())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		unstarted(a)
	}
}

// ready returns the answer of the node's health endpoint.
func ready(n *dataparallel.WorkerNode) (code int, text string) {
	rec := httptest.NewRecorder()
	n.Ready().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return rec.Code, rec.Body.String()
}
