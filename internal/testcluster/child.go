package testcluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/muster-pg/muster/internal/launch"
)

// childVar makes the test binary one of its Children: the name, and what it is given.
const childVar = "MUSTER_TEST_CHILD"

// Children are what a test binary can be instead of its tests: a real process, to be killed and frozen. Start starts one of them.
type Children map[string]func(ctx context.Context, arg string) error

// Run is the beginning of TestMain. In a child it does the child's work, and ends the process; elsewhere it returns.
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

// Env makes the test binary the child of that name. The race detector would sleep for a second at its end.
func Env(name, arg string) []string {
	return []string{childVar + "=" + name + "|" + arg, "GORACE=atexit_sleep_ms=0"}
}

// Start starts the test binary as the child of that name. It ends with the test, if not before, and may fail.
func Start(t testing.TB, name, arg string) *launch.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	job, err := launch.Start(t.Context(), launch.Spec{
		N: 1, Path: exe, Tether: true, Output: t.Output(), Grace: -1,
		Env:     func(int) []string { return Env(name, arg) },
		MayFail: func(int) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = job.Wait() }) // the test's context has ended by then
	return job.Process(0)
}
