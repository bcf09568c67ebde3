package agent

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// job returns the state of a job whose nodes have 5 workers each.
func job(r rules, nodes ...string) *state {
	s := &state{}
	for i := range nodes {
		s.entered(nodes[i], r, uint64(i+1), nodes[:i+1]...)
	}
	return s
}

func (s *state) entered(name string, r rules, generation uint64, live ...string) {
	s.enter(name, 5, members{"run", generation, live}, r, "", time.Time{})
}

func fail(s *state, node, worker string, code int) bool {
	return s.failure(Failure{Process: "worker " + worker, Node: node, Reason: "exit status", Code: code})
}

// TestRestartsAreOfTheWholeJob checks that restarts on all nodes count together, and that the job
// fails when they are used up and too few workers are left, with the code of the first that failed.
func TestRestartsAreOfTheWholeJob(t *testing.T) {
	s := job(rules{Min: 9, Max: 10, MaxRestarts: 2}, "a", "b")
	require.True(t, fail(s, "a", "a-0", 3))
	require.True(t, fail(s, "b", "b-0", 4))
	require.Equal(t, 10, s.left())
	require.False(t, fail(s, "a", "a-1", 5), "no restart is left")
	require.Empty(t, s.Outcome, "9 workers go on")
	require.False(t, fail(s, "b", "b-1", 6))
	require.Equal(t, failed, s.Outcome)
	require.Equal(t, 3, s.Code)
	require.EqualError(t, s.err(), "worker a-0: exit status on node a, after 2 restarts: 8 of at least 9 workers are left; the last of 4 failures: worker b-1: exit status")
	s.success("a")
	require.Equal(t, failed, s.Outcome, "an outcome does not change")
}

// TestSucceeds has the workers of a job with two standbys end one after the other: the job has
// succeeded when those have that were in one view, and none of them starts again after the first.
func TestSucceeds(t *testing.T) {
	for _, failures := range []int{0, 1, 3} {
		s := job(rules{Min: 2, Max: 8, MaxRestarts: 9}, "a", "b")
		s.success("a")
		for i := range 7 {
			require.Empty(t, s.Outcome)
			if i < failures {
				require.False(t, fail(s, "b", "b-0", 3), "the job is ending")
			} else {
				s.success([]string{"a", "b"}[i%2])
			}
		}
		require.Equal(t, succeeded, s.Outcome)
		require.NoError(t, s.err())
	}
	s := job(rules{Min: 4, Max: 5}, "a")
	s.success("a")
	require.False(t, fail(s, "a", "a-1", 3))
	require.Empty(t, s.Outcome)
	require.False(t, fail(s, "a", "a-2", 3))
	require.Equal(t, failed, s.Outcome, "3 workers can succeed, and 4 must")
}

// TestNodesThatFail checks that the workers of a node which has failed do not count, that the others
// go on, and that a node which has entered in a later view is not removed.
func TestNodesThatFail(t *testing.T) {
	r := rules{Min: 2, Max: 10}
	s := job(r, "a", "b", "c")
	s.reconcile(members{"run", 2, []string{"a", "b"}}, time.Time{})
	require.Equal(t, 15, s.left(), "c has entered in view 3")
	s.lost("b", time.Time{})
	s.lost("b", time.Time{})
	require.Equal(t, 10, s.left())
	require.Equal(t, 1, s.Failures)
	require.Equal(t, "node b has failed", s.Last.String())
	require.False(t, fail(s, "b", "b-0", 1), "it is out of the job")
	require.Equal(t, 1, s.Failures)
	s.leaves("c")
	require.Equal(t, 5, s.left())
	require.Empty(t, s.Outcome)
	s.entered("d", r, 5, "d")
	require.Equal(t, []any{1, 0}, []any{len(s.Nodes), s.Failures}, "all nodes of before are gone: a new job")
}

// TestHistories plays random histories: the counts are never negative, an outcome never changes, and
// there is one when all workers have ended.
func TestHistories(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := rules{Min: 1 + rng.IntN(6), MaxRestarts: rng.IntN(4)}
		r.Max = r.Min + rng.IntN(10)
		names := []string{"a", "b", "c"}
		s := job(r, names...)
		running := map[string]int{"a": 5, "b": 5, "c": 5}
		var was outcome
		for range 200 {
			name := names[rng.IntN(3)]
			switch what := rng.IntN(40); {
			case running[name] == 0:
			case what == 0:
				s.lost(name, time.Time{})
				running[name] = 0
			case what == 1:
				s.leaves(name)
				running[name] = 0
			case what < 20:
				if !fail(s, name, name, 1) {
					running[name]--
				}
			default:
				s.success(name)
				running[name]--
			}
			for _, n := range s.Nodes {
				if n.Running < 0 {
					t.Fatalf("seed %d: %d workers run", seed, n.Running)
				}
			}
			if was != "" && was != s.Outcome {
				t.Fatalf("seed %d: %s, and then %s", seed, was, s.Outcome)
			}
			was = s.Outcome
		}
		if s.Done > 0 && running["a"]+running["b"]+running["c"] == 0 && len(s.Nodes) > 0 {
			require.NotEmpty(t, s.Outcome, "seed %d: %+v", seed, s)
		}
	}
}
