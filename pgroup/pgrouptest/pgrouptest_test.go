package pgrouptest_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

func allGather(t *testing.T, g *pgroup.Group) {
	got, err := pgroup.AllGather(t.Context(), g, g.Rank())
	require.NoError(t, err)
	if want := []int{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRun(t *testing.T) { pgrouptest.Run(t, 4, allGather) }

func TestProcs(t *testing.T) { pgrouptest.Procs(t, 4, allGather) }

func TestSeveralJobsInSubtests(t *testing.T) {
	for _, name := range []string{"one", "with a space", "with (meta) chars.*"} {
		t.Run(name, func(t *testing.T) {
			pgrouptest.Procs(t, 2, func(t *testing.T, g *pgroup.Group) {
				require.NoError(t, g.Barrier(t.Context()))
			})
			pgrouptest.Job{N: 3, Rank0Hosts: true}.Run(t, func(t *testing.T, g *pgroup.Group) {
				assert.Equal(t, 3, g.Size())
				require.NoError(t, g.Barrier(t.Context()))
			})
		})
	}
}

func TestHostsPlaySeveralNodes(t *testing.T) {
	pgrouptest.Job{N: 4, Hosts: []string{"a", "a", "b", "b"}}.Run(t, func(t *testing.T, g *pgroup.Group) {
		if g.NodeCount() != 2 || g.LocalRank() != g.Rank()%2 || !g.SameNode(g.Rank()^1) || g.SameNode(g.Rank()^2) {
			t.Errorf("rank %d: %d nodes, local rank %d", g.Rank(), g.NodeCount(), g.LocalRank())
		}
	})
}

// failing runs this test binary again with one of the tests in child_test.go, which fail, and
// returns its output.
func failing(t *testing.T, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	out, err := command(ctx, name).CombinedOutput()
	require.Error(t, err, "%s passed:\n%s", name, out)
	require.NoError(t, ctx.Err(), "%s hung:\n%s", name, out)
	return string(out)
}

// TestFailuresInProcess checks what is printed when a rank in a goroutine fails, does not return, or returns
// late, which must not end the other tests.
func TestFailuresInProcess(t *testing.T) {
	for name, words := range map[string][]string{
		"TestChildOneFailsInProcess": {"rank=1", "rank one has had enough", "aborted"},
		"TestChildOneIsStuck":        {"rank=1", "this rank has not returned", "pgrouptest_test.stuck("},
		"TestChildOneReturnsLate":    {"this rank has not returned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := failing(t, name)
			for _, want := range words {
				assert.Contains(t, out, want)
			}
			assert.NotContains(t, out, "panic:")
		})
	}
}

// TestTheCulpritIsPrintedFirst checks that without -v the output of the rank that failed or
// panicked comes before the output of the ranks that failed because of it. MUSTER_SOAK makes 200
// runs of the 2.
func TestTheCulpritIsPrintedFirst(t *testing.T) {
	runs := 2
	if os.Getenv("MUSTER_SOAK") != "" {
		runs = 200
	}
	for i := range runs {
		name, want := "TestChildOnePanics", "panic: out of my depth"
		if i%2 == 0 {
			name, want = "TestChildOneFails", "rank one has had enough"
		}
		out := failing(t, name)
		at, other := strings.Index(out, want), strings.Index(out, "[0]")
		if other < 0 {
			other = len(out)
		}
		if two := strings.Index(out, "[2]"); two >= 0 {
			other = min(other, two)
		}
		if at < 0 || at > other || !strings.Contains(out, "rank 1 failed first") {
			t.Fatalf("run %d: the culprit is not first:\n%s", i, out)
		}
	}
}

func TestAHangShowsTheRankAndEveryStack(t *testing.T) {
	out := failing(t, "TestChildOneIsStuckInAProcess")
	for _, want := range []string{"the job did not end in 2s; the others wait in barrier #1 for rank 1: ", "[0] ", "[2] ", "Barrier(", "pgrouptest_test.stuck("} {
		assert.Contains(t, out, want)
	}
	lines := strings.SplitN(out, "\n", 4)
	assert.Contains(t, strings.Join(lines[:3], "\n"), "for rank 1", "the cause is not first")
	assert.Less(t, strings.Index(out, "[1] "), strings.Index(out, "[0] "), "the culprit's stacks are not first")
	assert.NotRegexp(t, `(?m)rsp +0x`, out)
}
