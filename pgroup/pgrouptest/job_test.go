package pgrouptest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// These are the tests of vLLM's StatelessProcessGroup that upstream skips as "flaky and prone to
// hang", on real processes, with rank 0 as the host.

func job(n int) pgrouptest.Job { return pgrouptest.Job{N: n, Rank0Hosts: true} }

func must(t *testing.T, err error) {
	t.Helper()
	require.NoError(t, err)
}

func reduce(t *testing.T, g *pgroup.Group, v int) int {
	t.Helper()
	sum, err := pgroup.AllReduce(t.Context(), g, pgroup.Sum, v)
	must(t, err)
	return sum[0]
}

func secret(t *testing.T, g *pgroup.Group, root int) {
	t.Helper()
	word := "none"
	if g.Rank() == root {
		word = "secret"
	}
	got, err := pgroup.Broadcast(t.Context(), g, root, word)
	must(t, err)
	assert.Equal(t, "secret", got, "rank %d got %q", g.Rank(), got)
	must(t, g.Barrier(t.Context()))
}

func TestOverlappingGroupsOfProcesses(t *testing.T) {
	job(4).Run(t, func(t *testing.T, pg1 *pgroup.Group) {
		var pg2 *pgroup.Group
		if pg1.Rank() < 3 {
			var err error
			pg2, err = pg1.Sub(t.Context(), "pg2", 0, 1, 2)
			must(t, err)
			defer func() { _ = pg2.Close() }()
		}
		secret(t, pg1, 2)
		sum, want := reduce(t, pg1, pg1.Rank()), 6
		if pg2 != nil {
			secret(t, pg2, 2)
			sum, want = reduce(t, pg2, sum), 18
		}
		assert.Equal(t, want, sum, "rank %d", pg1.Rank())
		if pg1.NodeCount() != 1 || !pg1.SameNode(3) {
			t.Errorf("%d nodes", pg1.NodeCount())
		}
		allGather(t, pg1)
	})
}

// TestKilledRankIsNamedWithinASecond checks that a rank which dies by kill -9 is named within a
// second in the errors of all ranks that wait for it, also if it hosts the store. Else the test hosts
// it: a rank 0 that hosted would leave after its error, and late ranks would get an error about rank 0.
func TestKilledRankIsNamedWithinASecond(t *testing.T) {
	for _, killed := range []int{2, 0} {
		t.Run(fmt.Sprint(killed), func(t *testing.T) {
			pgrouptest.Job{N: 4, Rank0Hosts: killed == 0, MayFail: []int{killed}}.Run(t, func(t *testing.T, g *pgroup.Group) {
				must(t, g.Barrier(t.Context()))
				if g.Rank() == killed {
					must(t, syscall.Kill(syscall.Getpid(), syscall.SIGKILL))
				}
				start := time.Now()
				err := g.Barrier(t.Context())
				re, ok := asRankError(err)
				if !ok || !slices.Equal(re.Lost, []int{killed}) {
					t.Fatalf("got %v, want rank %d lost", err, killed)
				}
				assert.LessOrEqual(t, time.Since(start), time.Second)
			})
		})
	}
}

// TestFrozenRankIsMissing checks that a rank which is stopped is reported as missing, not as
// failed: the others get the error at their deadline, and the rank continues afterwards.
func TestFrozenRankIsMissing(t *testing.T) {
	job(3).Run(t, func(t *testing.T, g *pgroup.Group) {
		must(t, g.Barrier(t.Context()))
		switch g.Rank() {
		case 0:
			members, err := g.Members(t.Context())
			must(t, err)
			pid := members[2].PID
			must(t, syscall.Kill(pid, syscall.SIGSTOP))
			wantMissing(t, g.Barrier(within(t, 300*time.Millisecond)), 2)
			must(t, syscall.Kill(pid, syscall.SIGCONT))
			must(t, pgroup.Send(t.Context(), g, 2, "go on"))
		case 1:
			wantMissing(t, g.Barrier(within(t, 300*time.Millisecond)), 2)
		case 2:
			_, err := pgroup.Recv[string](t.Context(), g, 0)
			must(t, err)
			wantMissing(t, g.Barrier(t.Context()), 2) // decided while it was stopped
		}
		must(t, g.Barrier(t.Context()))
	})
}

func wantMissing(t *testing.T, err error, rank int) {
	t.Helper()
	re, ok := asRankError(err)
	if !ok || !errors.Is(err, pgroup.ErrTimeout) || !slices.Equal(re.Missing, []int{rank}) {
		t.Errorf("got %v, want rank %d missing", err, rank)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
