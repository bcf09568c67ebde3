package main_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// arguments is the variable with the arguments, one per line, with which a test starts this binary
// again as a rank.
const arguments = "MUSTER_TRAIN_TEST"

// limit is the timeout of operations that should take little time, on a busy machine and with the
// race detector.
const limit = 2 * time.Minute

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(arguments); ok {
		launch.ExitWithParent()
		os.Exit(train.Run(strings.Fields(args), os.Stdout, os.Stderr))
	}
	for _, name := range []string{"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"} {
		_ = os.Unsetenv(name)
	}
	testcluster.Leaks(m)
}

// job is a set of ranks that are processes.
type job struct {
	*launch.Job
	out, errs testcluster.Log
}

// start starts n ranks; args returns the arguments of each.
func start(t *testing.T, n int, args func(rank int) string, place func(rank int) pgroup.Config) *job {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	j := &job{}
	j.Job, err = launch.Start(ctx, launch.Spec{
		N: n, Path: self, Output: &j.out, ErrOutput: &j.errs, ParentPipe: true, Grace: -1,
		// as if each were started by hand: no launcher ends the others
		MayFail: func(int) bool { return true },
		Env: func(rank int) []string {
			c := place(rank)
			c.Rank, c.Size = rank, n
			// With the race detector each rank would sleep for a second before it exits.
			return append(c.Environ(), "GORACE=atexit_sleep_ms=0", arguments+"="+args(rank))
		},
	})
	require.NoError(t, err)
	return j
}

// served starts a store that the test hosts.
func served(t *testing.T) func(int) pgroup.Config {
	t.Helper()
	addr := testcluster.Serve(t, new(store.Server))
	return func(int) pgroup.Config { return pgroup.Config{Address: "muster://" + addr} }
}

// hosted returns the configuration for a store that rank 0 hosts.
func hosted(t *testing.T) func(int) pgroup.Config {
	t.Helper()
	addr := testcluster.Port(t)
	return func(int) pgroup.Config { return pgroup.Config{Address: addr} }
}

// run runs n ranks, all of which must succeed, and returns what they print.
func run(t *testing.T, n int, args string) string {
	t.Helper()
	j := start(t, n, func(int) string { return args }, served(t))
	err := j.Wait()
	require.NoError(t, err, j.errs.String())
	for rank := range n {
		require.NoError(t, j.Process(rank).Err(), "rank %d\n%s", rank, &j.errs)
	}
	require.Empty(t, j.errs.String())
	return j.out.String()
}

// said returns what a rank has printed to standard error.
func said(j *job, rank int) string {
	var mine []string
	for line := range strings.Lines(j.errs.String()) {
		if own, ok := strings.CutPrefix(line, fmt.Sprintf("[%d] ", rank)); ok {
			mine = append(mine, own)
		}
	}
	return strings.Join(mine, "")
}

// others returns the ranks below n except one.
func others(n, but int) (ranks []int) {
	for rank := range n {
		ranks = append(ranks, rank)
	}
	return slices.Delete(ranks, but, but+1)
}
