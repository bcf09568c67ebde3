package testcluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
)

// childVar makes the test binary one of its Children: it has the name and the argument.
const childVar = "MUSTER_TEST_CHILD"

// Children are functions that a test binary can run instead of its tests: real processes, to be
// killed and frozen. Start starts one.
type Children map[string]func(ctx context.Context, arg string) error

// Run must be called first in TestMain. In a child it runs the child's function and exits;
// elsewhere it returns.
func (c Children) Run() {
	name, arg, is := strings.Cut(os.Getenv(childVar), "|")
	if !is {
		return
	}
	launch.ExitWithParent()
	child := c[name]
	if child == nil {
		child = func(context.Context, string) error { return fmt.Errorf("there is no child %q here", name) }
	}
	if err := child(context.Background(), arg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Env returns the environment that makes the test binary the child with a name. It stops the race
// detector from sleeping for a second at exit.
func Env(name, arg string) []string {
	return []string{childVar + "=" + name + "|" + arg, "GORACE=atexit_sleep_ms=0"}
}

// Start starts the test binary as the child with a name, by Launch. Its temporary files are removed with
// the test: a child that is killed leaves them.
func Start(t testing.TB, name, arg string) *launch.Process {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return Launch(t, append(Env(name, arg), "TMPDIR="+t.TempDir()), exe)
}

// Launch starts a program with additional variables of the environment. The process ends with the test at
// the latest, after what was registered for the end of the test later, such as its clients. It may fail.
func Launch(t testing.TB, env []string, program string, args ...string) *launch.Process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	job, err := launch.Start(ctx, launch.Spec{
		N: 1, Path: program, Args: args, ParentPipe: true, Output: t.Output(), Grace: -1,
		Env:     func(int) []string { return env },
		MayFail: func(int) bool { return true },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = job.Wait()
	})
	return job.Process(0)
}
