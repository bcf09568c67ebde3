package gather_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/checkpoint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// dirVar names the environment variable with the directory that the processes of a job share.
const dirVar = "GATHER_TEST_DIR"

// exportVar has the directory to which processes export.
const exportVar = "GATHER_TEST_EXPORT"

// span bounds the waits of a process, on a busy machine too; deaths are reported much sooner.
const span = time.Minute

// procWays are the ways for processes: each has its hosts, and may share a directory.
func procWays(n int) map[string]pgrouptest.Job {
	nodes := make([]string, n)
	for i := range nodes {
		nodes[i] = fmt.Sprint("node ", i)
	}
	return map[string]pgrouptest.Job{"memory": {N: n}, "TCP": {N: n, Hosts: nodes}, "directory": {N: n, Env: []string{dirVar + "="}}}
}

// overProcs runs f as a test for each way, all at once. A process of a job uses the directory of the test.
func overProcs(t *testing.T, n int, f func(t *testing.T, j pgrouptest.Job)) {
	testcluster.AtOnce(t, maps.All(procWays(n)), func(t *testing.T, j pgrouptest.Job) {
		if len(j.Env) > 0 {
			j.Env = []string{dirVar + "=" + shared(t)}
		}
		f(t, j)
	})
}

// shared returns a directory that the test and its processes have in common.
func shared(t *testing.T) string {
	if dir := os.Getenv(dirVar); dir != "" {
		return dir
	}
	return t.TempDir()
}

// processes runs f on the processes of a job.
func processes(t *testing.T, j pgrouptest.Job, f func(r *rank)) {
	t.Helper()
	j.Run(t, func(t *testing.T, g *pgroup.Group) {
		ctx := testcluster.Within(t, span)
		ga, err := gather.Open(ctx, g, &gather.Options{Dir: os.Getenv(dirVar)})
		require.NoError(t, err)
		r := &rank{T: t, ctx: ctx, group: g, ga: ga}
		defer r.closes()
		f(r)
	})
}

// closes ends this process's part, and checks that no segments and names are left.
func (r *rank) closes() {
	assert.NoError(r, r.ga.Close())
	maps, err := os.ReadFile("/proc/self/maps")
	if errors.Is(err, os.ErrNotExist) {
		return // not Linux: it has no segments
	}
	require.NoError(r, err)
	assert.NotContains(r, string(maps), "memfd:muster-shm") // a group has memory of its own
	assert.NotContains(r, string(maps), "/dev/shm/")
	segments, _ := memory(r.T)
	assert.Zero(r, segments)
}

// suicide is kill -9.
func suicide() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// roundsVar names the environment variable with killRounds for the processes, which do not get
// -test.short.
const roundsVar = "GATHER_TEST_ROUNDS"

// killRounds returns how often a rank is killed, each time at another moment.
func killRounds() int {
	if n, err := strconv.Atoi(os.Getenv(roundsVar)); err == nil {
		return n
	}
	return testcluster.Form(1, 10)
}

// TestKilled kills the first rank, or a sender, at random moments, while they gather back to back:
// the others get an error that names the failed rank, the first rank's results stay unchanged, and
// no resources are left behind.
func TestKilled(t *testing.T) {
	t.Parallel()
	ranks := []int{2, 0, 3, 1}
	for _, victim := range []int{2, 3} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			overProcs(t, 4, func(t *testing.T, j pgrouptest.Job) {
				scratch := shared(t) // where a process might leave files
				if len(j.Env) == 0 {
					j.Env = append(j.Env, "TMPDIR="+scratch)
				}
				j.Env = append(j.Env, fmt.Sprint(roundsVar, "=", killRounds()), "MUSTER_RUN=again")
				j.MayFail = []int{victim}
				for round := range killRounds() {
					processes(t, j, func(r *rank) {
						chance := rand.New(rand.NewPCG(uint64(round), uint64(victim)))
						r.untilKilled(ranks, victim, time.Duration(chance.Int64N(int64(60*time.Millisecond))))
					})
					if t.Failed() {
						return
					}
				}
				j.MayFail = nil
				// the next Open removes what the killed processes have left
				processes(t, j, func(r *rank) {
					require.NoError(t, r.group.Barrier(r.ctx))
					if r.me() == 0 {
						for _, file := range filesIn(t, scratch) {
							assert.False(t, strings.Contains(filepath.Base(file), "rank-"), "%s is left", file)
						}
					}
					require.NoError(t, r.group.Barrier(r.ctx))
					r.gathers(ranks, 0, 100)
					require.NoError(t, r.group.Barrier(r.ctx))
				})
				assert.Empty(t, filesIn(t, scratch), "after all are closed")
			})
		})
	}
}

// untilKilled gathers 4 MiB from each rank, back to back, until the victim is killed after some
// time.
func (r *rank) untilKilled(ranks []int, victim int, after time.Duration) {
	const n = 1 << 20
	require.NoError(r, r.group.Barrier(r.ctx))
	if r.me() == victim {
		time.AfterFunc(after, suicide)
	}
	held := new(gather.Result[*tensor.Tensor])
	for round := 0; ; round++ {
		res, err := gather.Tensors(r.ctx, r.ga, ranks, filled(10*round+r.me(), n))
		if err == nil {
			held.Release()
			held = res
			continue
		}
		assert.ErrorIs(r, err, pgroup.ErrLost)
		assert.Equal(r, []int{victim}, r.rankError(err).Lost, "%v", err)
		for rank, got := range held.Present() {
			equal(r.T, filled(10*(round-1)+rank, n), got)
		}
		break
	}
	held.Release()
}

// TestModelOpt02ReaderExits ends the reader of one list while a result of another is being read.
func TestModelOpt02ReaderExits(t *testing.T) {
	t.Parallel()
	overProcs(t, 4, func(t *testing.T, j pgrouptest.Job) {
		j.MayFail = []int{0}
		processes(t, j, func(r *rank) {
			ranks := []int{r.me() &^ 1, r.me() | 1}
			res := r.gather(ranks, filled(r.me(), 1<<20))
			require.NoError(t, r.group.Barrier(r.ctx))
			if r.me() == 0 {
				os.Exit(3)
			}
			if ranks[0] == 0 {
				return
			}
			<-r.group.Context().Done() // it has failed
			for rank, got := range res.Present() {
				equal(t, filled(rank, 1<<20), got)
			}
			res.Release()
			r.gathers(ranks, 10, 1<<20)
		})
	})
}

// TestFrozen stops a sender: the others get the error at their deadline that it is missing. When it
// resumes, it gets that error, and all gather again.
func TestFrozen(t *testing.T) {
	t.Parallel()
	overProcs(t, 3, func(t *testing.T, j pgrouptest.Job) {
		processes(t, j, func(r *rank) {
			ranks := []int{0, 1, 2}
			require.True(t, r.gathers(ranks, 0, 1000))
			require.NoError(t, r.group.Barrier(r.ctx))
			pid := r.pid(2)
			switch r.me() {
			case 0:
				require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
				r.missing(ranks, 2)
				require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
				require.NoError(t, pgroup.Send(r.ctx, r.group, 2, "go on"))
			case 1:
				r.missing(ranks, 2)
			case 2:
				_, err := pgroup.Recv[string](r.ctx, r.group, 0)
				require.NoError(t, err)
				_, err = gather.Tensors(r.ctx, r.ga, ranks, filled(2, 1000)) // decided while it was stopped
				assert.Equal(t, []int{2}, r.rankError(err).Missing)
			}
			r.gathers(ranks, 10, 1000)
			assert.NoError(t, r.group.Barrier(r.ctx))
		})
	})
}

func (r *rank) missing(ranks []int, who int) {
	r.Helper()
	_, err := gather.Tensors(testcluster.Within(r, 2*time.Second), r.ga, ranks, filled(r.me(), 1000))
	assert.ErrorIs(r, err, pgroup.ErrTimeout)
	assert.Equal(r, []int{who}, r.rankError(err).Missing, "%v", err)
}

// TestExportKilled kills a rank at random moments while models are exported to a directory, back to back. The
// others get an error that names it. The directory has a whole model: the last one that they have seen
// succeed, or the one that failed.
func TestExportKilled(t *testing.T) {
	t.Parallel()
	for _, victim := range []int{0, 3} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			overProcs(t, 4, func(t *testing.T, j pgrouptest.Job) {
				dir := cmp.Or(os.Getenv(exportVar), t.TempDir())
				j.Env = append(j.Env, exportVar+"="+dir, fmt.Sprint(roundsVar, "=", killRounds()), "MUSTER_RUN=again")
				j.MayFail = []int{victim}
				for round := range killRounds() {
					processes(t, j, func(r *rank) {
						chance := rand.New(rand.NewPCG(uint64(round), uint64(victim)))
						r.exportsUntilKilled(filepath.Join(dir, fmt.Sprint(round)), victim, 1<<(8+chance.IntN(13)), time.Duration(chance.Int64N(int64(200*time.Millisecond))))
					})
					if t.Failed() {
						return
					}
				}
			})
		})
	}
}

// exportsUntilKilled exports a tensor of which each rank has n numbers, and one that they all have.
func (r *rank) exportsUntilKilled(dir string, victim, n int, after time.Duration) {
	model := func(of int) map[string]gather.Part {
		rows := filled(of, n)
		return map[string]gather.Part{"rows": {Tensor: rows, Start: []int{r.me() * n}, Shape: []int{4 * n}}, "same": {Tensor: rows}}
	}
	require.NoError(r, r.group.Barrier(r.ctx))
	if r.me() == victim {
		time.AfterFunc(after, suicide)
	}
	for of := 0; ; of++ {
		err := gather.Export(r.ctx, r.ga, dir, model(of), &gather.ExportOptions{Metadata: map[string]string{"of": fmt.Sprint(of)}})
		if err == nil {
			continue
		}
		assert.ErrorIs(r, err, pgroup.ErrLost)
		assert.Equal(r, []int{victim}, r.rankError(err).Lost, "%v", err)
		if r.me() == 1 {
			r.checkModel(dir, of, model)
		}
		return
	}
}

// checkModel checks that a directory has one of two models, or none if there was none before.
func (r *rank) checkModel(dir string, of int, model func(of int) map[string]gather.Part) {
	s, err := checkpoint.Open(nil, filepath.Join(dir, safetensors.IndexName))
	if of == 0 && errors.Is(err, os.ErrNotExist) {
		return
	}
	require.NoError(r, err)
	defer s.Close()
	if s.Metadata["of"] != fmt.Sprint(of) {
		of--
		require.Equal(r, fmt.Sprint(of), s.Metadata["of"])
	}
	rows := model(of)["rows"].Tensor
	for name, times := range map[string]int{"rows": 4, "same": 1} {
		got, err := s.ReadTensor(r.ctx, name)
		require.NoError(r, err)
		require.True(r, bytes.Equal(bytes.Repeat(rows.Data, times), got.Data), name)
	}
}

// TestSharedMemoryIsOff checks that the setting of the group is respected.
func TestSharedMemoryIsOff(t *testing.T) {
	for setting, shared := range map[string]bool{"off": false, "": runtime.GOOS == "linux"} {
		t.Run(setting, func(t *testing.T) {
			processes(t, pgrouptest.Job{N: 2, Env: []string{"MUSTER_SHARED_MEMORY=" + setting}}, func(r *rank) {
				require.True(r, r.gathers([]int{1, 0}, 1, 1000))
				maps, _ := os.ReadFile("/proc/self/maps")
				require.Equal(r, shared, bytes.Contains(maps, []byte("/memfd:muster-shm")))
				require.NoError(r, r.group.Barrier(r.ctx))
			})
		})
	}
}
