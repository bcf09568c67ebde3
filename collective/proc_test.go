package collective_test

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// span bounds the waits of a process; failures are reported much sooner.
const span = time.Minute

// overProcs runs f as a test for each way to place four processes on hosts, all at once.
func overProcs(t *testing.T, f func(t *testing.T, j pgrouptest.Job)) {
	t.Parallel()
	testcluster.AtOnce(t, maps.All(map[string]func(rank int) string{
		"memory":        func(int) string { return "node" },
		"TCP":           apart,
		"unequal hosts": func(rank int) string { return fmt.Sprint("node ", min(rank, 1)) },
	}), func(t *testing.T, host func(rank int) string) {
		j := pgrouptest.Job{N: 4}
		for i := range j.N {
			j.Hosts = append(j.Hosts, host(i))
		}
		f(t, j)
	})
}

// processes runs f on the processes of a job.
func processes(t *testing.T, j pgrouptest.Job, f func(r *rank)) {
	t.Helper()
	j.Run(t, func(t *testing.T, g *pgroup.Group) {
		ctx := testcluster.Within(t, span)
		c, err := collective.Open(ctx, g, nil)
		require.NoError(t, err)
		defer c.Close()
		f(&rank{T: t, ctx: ctx, g: g, c: c})
	})
}

// reduces runs one all-reduce, and checks its sum.
func (r *rank) reduces(length int) error {
	x := vector[float32](r.me(), length)
	err := collective.AllReduce(r.ctx, r.c, collective.Sum, x)
	if err == nil {
		assert.True(r, slices.Equal(sum[float32](r.g.Size(), length), x), "%d elements", length)
	}
	return err
}

// allReduce runs an all-reduce that must succeed, and returns when all ranks have done it, so that
// ranks may fail from then on.
func (r *rank) allReduce(length int) {
	r.Helper()
	require.NoError(r, r.reduces(length))
	require.NoError(r, r.g.Barrier(r.ctx))
}

// until runs all-reduces, of one slice and of several, until one fails, and returns the error.
func (r *rank) until() *pgroup.RankError {
	r.Helper()
	for r.ctx.Err() == nil {
		err := r.reduces(10_000)
		if err == nil {
			err = r.reducesAll(300_000)
		}
		if err != nil {
			return r.rankError(err)
		}
	}
	require.FailNow(r, "no all-reduce has failed")
	return nil
}

// goOn shrinks the group to the remaining ranks, and reduces with them.
func (r *rank) goOn() {
	assert.NoError(r, r.c.Close())
	g, err := r.g.Shrink(r.ctx)
	require.NoError(r, err)
	defer g.Close()
	assert.Greater(r, g.Generation(), r.g.Generation())
	c, err := collective.Open(r.ctx, g, nil)
	require.NoError(r, err)
	defer c.Close()
	next := &rank{T: r.T, ctx: r.ctx, g: g, c: c}
	for range 10 {
		require.NoError(r, next.reduces(50_000))
	}
	assert.NoError(r, c.Barrier(r.ctx))
}

const roundVar = "COLLECTIVE_TEST_ROUND"

// TestKilled kills a rank at random moments: all others get an error that names it, and continue
// without it.
func TestKilled(t *testing.T) {
	rounds := testcluster.Form(3, 9) // each of three ranks is killed
	overProcs(t, func(t *testing.T, j pgrouptest.Job) {
		for round := range rounds {
			if text := os.Getenv(roundVar); text != "" { // in a process of the job
				round, _ = strconv.Atoi(text)
			}
			j := j
			victim := 1 + round%3
			j.MayFail = []int{victim}
			j.Env = []string{fmt.Sprint(roundVar, "=", round)}
			processes(t, j, func(r *rank) {
				if r.me() == victim {
					time.AfterFunc(time.Duration(round)*7*time.Millisecond, func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) })
				}
				re := r.until()
				assert.Equal(r, []int{victim}, re.Lost, "%v", re)
				assert.ErrorIs(r, re, pgroup.ErrLost)
				r.goOn()
			})
		}
	})
}

// TestFrozen stops a rank, which then neither reads nor closes anything: it fails for all others,
// and for itself when it resumes.
func TestFrozen(t *testing.T) {
	overProcs(t, func(t *testing.T, j pgrouptest.Job) {
		const victim = 2
		j.LivenessTimeout = 3 * time.Second // a healthy rank of a busy host may not run for a second
		processes(t, j, func(r *rank) {
			r.allReduce(1000)
			pid := r.pid(victim)
			if r.me() == 0 {
				require.NoError(r, syscall.Kill(pid, syscall.SIGSTOP))
			}
			re := r.until()
			assert.Equal(r, []int{victim}, re.Lost, "%v", re)
			if r.me() == 0 {
				require.NoError(r, syscall.Kill(pid, syscall.SIGCONT))
			}
			if r.me() != victim {
				r.goOn()
			}
		})
	})
}

// TestSharedMemoryIsOff checks that the setting of the group is respected, if one rank alone has it too:
// all ranks use connections.
func TestSharedMemoryIsOff(t *testing.T) {
	for off := range 4 { // ranks
		w := way{host: func(int) string { return "node" }, set: func(c *pgroup.Config) {
			if c.Rank < off {
				c.SharedMemory = pgroup.SharedMemoryOff
			}
		}}
		w.run(t, 3, func(r *rank) {
			_, some := r.c.SharesMemory()
			assert.Equal(r, off == 0 && runtime.GOOS == "linux", some, "%d ranks", off)
			r.allReduce(1000)
		})
	}
}
