package dataparallel_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
)

// children are the roles of the test binary when it does not run tests: a worker, or a rank of a
// benchmark.
var children = testcluster.Children{"worker": childWorker, "averager": childAverager}

// childWorker gets its id and the URL of the store. It takes part in steps until it is killed.
func childWorker(ctx context.Context, arg string) error {
	id, at, _ := strings.Cut(arg, " ")
	n := &dataparallel.WorkerNode{Address: at, Worker: worker(id, 1, 3)}
	if err := n.Start(ctx); err != nil {
		return err
	}
	for s := n.Strategy(); ; {
		_, err := step(ctx, s)
		for err == nil {
			_, err = step(ctx, s)
		}
		if !n.Over(err) {
			return err
		}
		if s, err = n.Next(ctx); err != nil {
			return err
		}
	}
}

// process starts a worker in a separate process.
func process(t *testing.T, at, id string) *launch.Process {
	t.Helper()
	return testcluster.Start(t, "worker", id+" "+at)
}

// TestKilledProcesses checks that workers which wait for one that is killed in the middle of a step
// get an error that names it, and continue. The killed worker restarts at once, and gets the rank
// after theirs.
func TestKilledProcesses(t *testing.T) {
	t.Parallel()
	at := url(t)
	a := newNode(t, at, "a", 1, 3)
	start(t, a)
	b, c := process(t, at, "b"), process(t, at, "c")
	size := func(n int) {
		t.Helper()
		for a.Size() != n && !t.Failed() {
			untilOver(t, a)
		}
	}
	size(3)
	for range 2 {
		testcluster.Kill(t, b)
		var again sync.WaitGroup
		var next *launch.Process
		again.Go(func() { next = process(t, at, "b") })
		why := failureOf(t, a)
		assert.True(t, errors.Is(why, pgroup.ErrLost) || errors.Is(why, membership.ErrOver), "%v", why)
		again.Wait()
		size(3)
		require.Equal(t, 0, a.Rank())
		b = next
		mean, err := step(bounded(t), a.Strategy())
		require.NoError(t, err)
		require.InDelta(t, 1, mean, 1e-9)
	}
	testcluster.Kill(t, b)
	testcluster.Kill(t, c)
	size(1)
}
