package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// cluster is a job whose nodes are goroutines.
type cluster struct {
	t     *testing.T
	store *store.Store
	proto agent.Agent
	wg    sync.WaitGroup

	mu      sync.Mutex // protects the fields below
	results map[string]error
	reports []string
}

func newCluster(t *testing.T, proto agent.Agent) *cluster {
	memory := &store.Memory{}
	require.NoError(t, memory.Open())
	t.Cleanup(func() { _ = memory.Close() })
	proto.Job, proto.NodeRank, proto.Address, proto.Procs = "job", -1, "127.0.0.1", 2
	if proto.JoinTimeout == 0 {
		proto.JoinTimeout = time.Minute
	}
	return &cluster{t: t, store: store.New(memory), proto: proto, results: map[string]error{}}
}

type startFunc func(ctx context.Context, a agent.Attempt) error

// node runs an agent in the background. Calling drain has it leave.
func (c *cluster) node(name string, start startFunc) (drain func()) {
	a := c.proto
	a.Store, a.Name, a.Start = c.store, name, start
	drained := make(chan struct{})
	a.Draining = drained
	a.Report = func(text string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reports = append(c.reports, name+": "+text)
	}
	c.wg.Go(func() {
		err := a.Run(c.t.Context())
		c.mu.Lock()
		defer c.mu.Unlock()
		c.results[name] = err
	})
	return sync.OnceFunc(func() { close(drained) })
}

func (c *cluster) wait() map[string]error {
	c.wg.Wait()
	return c.results
}

// untilEnd is a node whose processes run until they are ended.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestRestart has a process of one node fail in the first two attempts: the processes of all nodes
// are ended and begin again, as other attempts.
func TestRestart(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 3, MaxNodes: 3, MaxRestarts: 2})
	var mu sync.Mutex
	ids, firsts := map[int]map[string]bool{}, map[int]map[int]bool{}
	for i := range 3 {
		c.node(fmt.Sprint(i), func(ctx context.Context, a agent.Attempt) error {
			mu.Lock()
			if ids[a.Restarts] == nil {
				ids[a.Restarts], firsts[a.Restarts] = map[string]bool{}, map[int]bool{}
			}
			ids[a.Restarts][a.ID], firsts[a.Restarts][a.First] = true, true
			mu.Unlock()
			switch {
			case a.Restarts == 2:
				return nil
			case i == a.Restarts:
				return errors.New("rank 1: exit status 3")
			}
			return untilEnd(ctx)
		})
	}
	for name, err := range c.wait() {
		require.NoError(t, err, name)
	}
	require.Len(t, ids, 3)
	all := map[string]bool{}
	for n := range 3 {
		require.Len(t, ids[n], 1, "one id on all nodes")
		require.Equal(t, map[int]bool{0: true, 2: true, 4: true}, firsts[n])
		for id := range ids[n] {
			all[id] = true
		}
	}
	require.Len(t, all, 3, "another id in each attempt")
	require.Contains(t, c.reports, "1: rank 1: exit status 3 on node 0: restart 1 of at most 2")
	require.Contains(t, c.reports, "0: rank 1: exit status 3: restart 1 of at most 2")
}

// TestOneOutcome has random processes fail at the same time, and others succeed at that moment: all
// nodes have the same result, and have counted the same restarts.
func TestOneOutcome(t *testing.T) {
	for round := range 20 {
		c := newCluster(t, agent.Agent{MinNodes: 4, MaxNodes: 4, MaxRestarts: 2})
		for i := range 4 {
			c.node(fmt.Sprint(i), func(ctx context.Context, a agent.Attempt) error {
				if a.Restarts == 2 && round%2 == 0 {
					return nil
				}
				switch what := rand.N(4); {
				case what == 0 || i == a.Restarts:
					return fmt.Errorf("rank %d failed", a.First)
				case what == 1:
					return untilEnd(ctx)
				}
				return nil
			})
		}
		same := map[string]int{}
		for _, err := range c.wait() {
			if failed, ok := errors.AsType[*agent.Error](err); ok {
				same[fmt.Sprint(failed.Reason, failed.Node, failed.Restarts)]++
			} else {
				same[fmt.Sprint(err)]++
			}
		}
		require.Len(t, same, 1, "%v", c.results)
	}
}

// TestNodesComeAndGo has a third node come while two are running, and leave: each time all nodes that are there
// begin again with the ranks that they have now, and without counting a restart.
func TestNodesComeAndGo(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 2, MaxNodes: 3})
	began := make(chan agent.Attempt, 16)
	untilOver := func(over chan struct{}, outcome error) startFunc {
		return func(ctx context.Context, a agent.Attempt) error {
			began <- a
			select {
			case <-over:
				return outcome
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	begin := func(nodes int) {
		for range nodes {
			a := <-began
			require.Equal(t, []int{nodes, 2 * nodes, 0}, []int{a.Nodes, a.Size, a.Restarts})
		}
	}
	over, left := make(chan struct{}), make(chan struct{})
	c.node("a", untilOver(over, nil))
	c.node("b", untilOver(over, nil))
	begin(2)
	drain := c.node("c", untilOver(left, errExit))
	begin(3)
	drain()
	close(left)
	begin(2)
	close(over)
	require.Equal(t, map[string]error{"a": nil, "b": nil, "c": errExit}, c.wait())
}

// TestSpareEndsWithTheJob checks that a node which waits for a place has the outcome of the job, and
// that the next job of the name is another one.
func TestSpareEndsWithTheJob(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 2, MaxNodes: 2})
	for _, outcome := range []error{nil, errors.New("rank 0: exit status 3"), nil} {
		end := make(chan struct{})
		start := func(context.Context, agent.Attempt) error { <-end; return outcome }
		for i := range 3 {
			c.node(fmt.Sprint(i), start)
		}
		testcluster.Eventually(t, time.Minute, func() bool { return c.registered() == 3 }, "all nodes are registered")
		close(end)
		for name, err := range c.wait() {
			if outcome == nil {
				require.NoError(t, err, name)
			} else {
				require.ErrorContains(t, err, "rank 0: exit status 3", name)
			}
		}
	}
}

// registered returns the number of nodes that have joined.
func (c *cluster) registered() (n int) {
	for key, err := range c.store.Keys(c.t.Context(), "membership/") {
		if err == nil && strings.Contains(key, "/worker/") {
			n++
		}
	}
	return n
}

// TestDrainingWhileWaiting checks that a node which waits for others leaves at once.
func TestDrainingWhileWaiting(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 2, MaxNodes: 2})
	c.node("a", nil)()
	assert.ErrorIs(t, c.wait()["a"], agent.ErrDraining)
}
