package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

// workers are the workers of a cluster's nodes, which are goroutines.
type workers struct {
	mu     sync.Mutex            // protects the fields below
	end    map[string]chan error // by worker
	launch string                // of the last start
}

// start implements agent.Elastic.Start.
func (w *workers) start(ctx context.Context, worker agent.Worker) error {
	end := make(chan error, 1)
	w.mu.Lock()
	w.end[worker.ID], w.launch = end, worker.Launch
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.end, worker.ID)
		w.mu.Unlock()
	}()
	select {
	case err := <-end:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// launched returns the launch of the last start, for membership.Config.
func (w *workers) launched() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.launch
}

// running returns the workers that run, in order.
func (w *workers) running() (ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.end {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// ends ends a worker.
func (w *workers) ends(id string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end[id] <- err
}

// elasticNode is node for an elastic job.
func (c *cluster) elasticNode(name string, least, most int) (w *workers, drain func()) {
	w = &workers{end: map[string]chan error{}}
	proto := c.proto
	defer func() { c.proto = proto }()
	c.proto.Elastic = &agent.Elastic{Min: least, Max: most, Start: w.start, Finish: 10 * time.Millisecond}
	return w, c.node(name, nil)
}

// runs waits until exactly these workers run.
func (w *workers) runs(t *testing.T, ids ...string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, func() bool { return slices.Equal(w.running(), ids) }, fmt.Sprint("workers ", ids))
}

var errExit = errors.New("exit status 3")

// TestElasticAgain checks that a job of a name starts again after one that has failed, and that
// nothing of it is left in the store.
func TestElasticAgain(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 2})
	for range 3 {
		a, _ := c.elasticNode("a", 2, 2)
		a.runs(t, "a-0", "a-1")
		a.ends("a-1", errExit)
		require.Error(t, c.wait()["a"])
	}
	for key, err := range c.store.Keys(t.Context(), "") {
		require.NoError(t, err)
		t.Error("key is left:", key)
	}
}

// TestElasticLasts checks that workers start again after days without any change.
func TestElasticLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 1, MaxRestarts: 1})
		a, _ := c.elasticNode("a", 2, 2)
		a.runs(t, "a-0", "a-1")
		time.Sleep(100 * time.Hour)
		a.ends("a-1", errExit)
		a.runs(t, "a-0", "a-1.2")
		a.ends("a-0", nil)
		a.ends("a-1.2", nil)
		require.NoError(t, c.wait()["a"])
		require.NoError(t, c.store.Close())
	})
}

// TestElasticWithoutStore checks that a node which does not reach the store ends its workers when its lease
// expires, and joins again when it reaches the store.
func TestElasticWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 2})
		memory := &store.Memory{}
		require.NoError(t, memory.Open())
		line := testcluster.NewLine(memory)
		c.store = store.New(line)
		a, _ := c.elasticNode("a", 2, 2)
		a.runs(t, "a-0", "a-1")
		line.Freeze()
		a.runs(t)
		earlier, err := membership.Join(t.Context(), store.New(memory), membership.Config{Job: "job", ID: "a", Min: 1, Max: 2})
		require.NoError(t, err) // as if the lease had not expired in the store
		line.Thaw()
		time.Sleep(5 * time.Second)
		require.NoError(t, earlier.Leave(t.Context()))
		a.runs(t, "a-0.2", "a-1.2")
		a.ends("a-0.2", nil)
		a.ends("a-1.2", nil)
		require.NoError(t, c.wait()["a"])
		require.NoError(t, memory.Close())
	})
}

// TestElasticSpareNode checks that a node which waits for a place ends with the job.
func TestElasticSpareNode(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 2, MaxNodes: 2})
	a, _ := c.elasticNode("a", 4, 4)
	b, _ := c.elasticNode("b", 4, 4)
	a.runs(t, "a-0", "a-1")
	b.runs(t, "b-0", "b-1")
	spare, _ := c.elasticNode("c", 4, 4)
	testcluster.Eventually(t, time.Minute, func() bool { return c.registered() == 3 }, "all nodes are registered")
	a.ends("a-1", errExit)
	got := c.wait()
	require.Error(t, got["a"])
	require.EqualError(t, got["b"], got["a"].Error())
	require.EqualError(t, got["c"], got["a"].Error())
	require.Empty(t, spare.running())
}

// TestElasticEndsStandbys checks that workers which never were in a view are ended with the job.
func TestElasticEndsStandbys(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 1})
	a, _ := c.elasticNode("a", 1, 1)
	a.runs(t, "a-0", "a-1")
	a.ends("a-0", nil)
	require.NoError(t, c.wait()["a"])
}

// TestElasticFinished checks that a worker which ends with an error after the work is finished, as a standby
// may, does not start again: it would find no others. One that fails before is removed from the workers' job.
func TestElasticFinished(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 1, MaxRestarts: 9})
	w := &workers{end: map[string]chan error{}}
	join := func(id string) *membership.Member {
		config := membership.Config{Job: "workers", ID: id, Min: 1, Max: 1, Launch: w.launched()}
		m, err := membership.Join(t.Context(), c.store, config)
		require.NoError(t, err)
		return m
	}
	before := join("before")
	v, err := before.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, v.Finish(t.Context())) // an earlier job of this name
	require.NoError(t, before.Leave(t.Context()))

	c.proto.Elastic = &agent.Elastic{Min: 1, Max: 1, Start: w.start, Store: c.store, Job: "workers"}
	c.node("a", nil)
	w.runs(t, "a-0", "a-1")
	killed, other := join("a-1"), join("a-0")
	defer killed.Close()
	w.ends("a-1", errExit)
	w.runs(t, "a-0", "a-1.2")
	v, err = other.Next(t.Context())
	require.NoError(t, err, "it is no longer a standby")
	require.NoError(t, v.Finish(t.Context()))
	require.NoError(t, other.Leave(t.Context()))
	w.ends("a-1.2", errExit)
	w.runs(t, "a-0")
	w.ends("a-0", nil)
	require.NoError(t, c.wait()["a"])
}

// TestElasticNodesComeAndGo has a node leave, and others come: the workers of the other nodes go on.
func TestElasticNodesComeAndGo(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 2})
	a, _ := c.elasticNode("a", 2, 4)
	a.runs(t, "a-0", "a-1")
	b, drain := c.elasticNode("b", 2, 4)
	b.runs(t, "b-0", "b-1")
	spare, _ := c.elasticNode("c", 2, 4)
	drain()
	b.ends("b-0", errExit)
	b.ends("b-1", nil)
	spare.runs(t, "c-0", "c-1")
	a.runs(t, "a-0", "a-1")
	for _, id := range []string{"0", "1"} {
		a.ends("a-"+id, nil)
		spare.ends("c-"+id, nil)
	}
	require.Equal(t, map[string]error{"a": nil, "b": errExit, "c": nil}, c.wait())
	require.Empty(t, c.reports, "no failure has been counted")
}

// TestElasticTooFewWorkers checks that a job which has too few workers for JoinTimeout fails.
func TestElasticTooFewWorkers(t *testing.T) {
	c := newCluster(t, agent.Agent{MinNodes: 1, MaxNodes: 2, JoinTimeout: 100 * time.Millisecond})
	a, _ := c.elasticNode("a", 3, 4)
	require.EqualError(t, c.wait()["a"], "2 of at least 3 workers within --join-timeout 100ms")
	require.Empty(t, a.running())
}

// TestElasticOneOutcome has random workers of four nodes fail and succeed, and nodes leave: all
// nodes that stay have the same result, and no worker is left.
func TestElasticOneOutcome(t *testing.T) {
	for range testcluster.Form(20, 500) {
		c := newCluster(t, agent.Agent{MinNodes: 2, MaxNodes: 4, MaxRestarts: 3})
		var all []*workers
		var drains []func()
		for i := range 4 {
			w, drain := c.elasticNode(fmt.Sprint(i), 3, 6)
			all, drains = append(all, w), append(drains, drain)
		}
		for _, w := range all {
			testcluster.Eventually(t, time.Minute, func() bool { return len(w.running()) == 2 }, "all workers run")
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			c.wg.Wait()
		}()
		var leaves []string
		for live := true; live; {
			select {
			case <-over:
				live = false
			case <-time.After(rand.N(time.Millisecond)):
			}
			i := rand.N(4)
			if ids := all[i].running(); len(ids) > 0 {
				all[i].tryEnd(ids[rand.N(len(ids))], []error{nil, errExit, errExit}[rand.N(3)])
			}
			if rand.N(20) == 0 && len(leaves) < 2 {
				drains[i]()
				leaves = append(leaves, fmt.Sprint(i))
				for _, id := range all[i].running() {
					all[i].tryEnd(id, nil)
				}
			}
		}
		same := map[string]bool{}
		for name, err := range c.wait() {
			if !slices.Contains(leaves, name) {
				same[fmt.Sprint(err)] = true
			}
		}
		require.Len(t, same, 1, "%v", c.results)
		for _, w := range all {
			assert.Empty(t, w.running())
		}
	}
}

// tryEnd is ends for a worker that may have ended.
func (w *workers) tryEnd(id string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.end[id] <- err:
	default:
	}
}
