package pgrouptest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// opTimeout bounds the runs of tests that fail.
const opTimeout = 30 * time.Second

// wanted is set for the tests of this file, which fail: they run only when a test of the other file
// starts them.
const wanted = "PGROUPTEST_FAIL"

func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"-test.run=^" + name + "$"}, args...)...)
	cmd.Env = append(os.Environ(), wanted+"=1")
	return cmd
}

func asRankError(err error) (*pgroup.RankError, bool) { return errors.AsType[*pgroup.RankError](err) }

func onlyWanted(t *testing.T) {
	if os.Getenv(wanted) == "" {
		t.Skip("SKIPPED: fails on purpose: run by the test of what a failure looks like")
	}
}

// one makes rank 1 call do instead of the barrier.
func one(do func(t *testing.T)) func(*testing.T, *pgroup.Group) {
	return func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 1 {
			do(t)
		}
		assert.NoError(t, g.Barrier(t.Context()))
	}
}

func fail(t *testing.T) { t.Fatal("rank one has had enough") }
func panics(*testing.T) { panic("out of my depth") }
func TestChildOneFails(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Procs(t, 3, one(fail))
}

func TestChildOnePanics(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Procs(t, 3, one(panics))
}

func TestChildOneFailsInProcess(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Run(t, 3, one(fail))
}

// TestChildOneIsStuck has a rank that ignores its context, while another one fails.
func TestChildOneIsStuck(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Run(t, 3, func(t *testing.T, g *pgroup.Group) {
		switch g.Rank() {
		case 0:
			fail(t)
		case 1:
			stuck()
		}
	})
}

func stuck() { select {} }

// TestChildOneIsStuckInAProcess has a rank that never calls the barrier of the others.
func TestChildOneIsStuckInAProcess(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Job{N: 3, Timeout: 2 * time.Second}.Run(t, one(func(*testing.T) { stuck() }))
}

// TestChildOneReturnsLate has a rank that fails after its test has ended. The next test runs all
// the same.
func TestChildOneReturnsLate(t *testing.T) {
	onlyWanted(t)
	late := make(chan struct{})
	pgrouptest.Run(t, 2, func(t *testing.T, g *pgroup.Group) {
		if g.Rank() == 0 {
			fail(t)
		}
		defer close(late)
		<-t.Context().Done() // when the subtest has ended
		t.Error("too late")
	})
	<-late
}
