package gather_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
)

// TestJobsShareADirectory runs jobs with one name, with different runs, and with other names, in
// one directory at the same time. None ends another, and jobs without a run leave no files.
func TestJobsShareADirectory(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	jobsAt := []job{{}, {}, {runID: "a"}, {runID: "b"}, {name: "a/b"}, {name: ".."}, {name: strings.Repeat("long ", 100)}}
	var open atomic.Int64 // the number of ranks that have gathered
	var jobs sync.WaitGroup
	all := make(chan struct{}) // closed when all jobs have gathered
	for k, j := range jobsAt {
		jobs.Go(func() {
			j.n, j.o = 2, o
			j.run(t, func(r *rank) {
				r.gathers([]int{1, 0}, 100*k, 1000)
				if open.Add(1) == 2*int64(len(jobsAt)) {
					close(all)
				}
				select {
				case <-all:
				case <-r.ctx.Done():
					assert.Fail(r, "a rank of another job could not open the directory")
				}
				for round := 1; round < 5 && r.gathers([]int{1, 0}, 100*k+10*round, 1000); round++ {
				}
				assert.NoError(r, r.group.Barrier(r.ctx))
			})
		})
	}
	jobs.Wait()
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// TestLeftoversOfKilledJobs has workspaces of killed jobs in the directory: an old one is removed,
// with its files, and others stay.
func TestLeftoversOfKilledJobs(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	for name, age := range map[string]time.Duration{"group-old.run-1": 8 * 24 * time.Hour, "group-new.run-2": time.Hour, "notes": 99 * 24 * time.Hour} {
		dir := filepath.Join(o.Dir, name)
		w, err := nfsws.Open(t.Context(), dir, 0, nil)
		require.NoError(t, err)
		_, err = w.Write(t.Context(), nil, nil)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		for _, at := range []string{nfsws.GenerationDir(dir, 0), dir} {
			then := time.Now().Add(-age)
			require.NoError(t, os.Chtimes(at, then, then))
		}
	}
	job{n: 1, o: o}.run(t, func(*rank) {})
	left, err := filepath.Glob(o.Dir + "/*")
	require.NoError(t, err)
	require.Equal(t, []string{o.Dir + "/group-new.run-2", o.Dir + "/notes"}, left)
}

// TestNothingIsLeft makes many groups that gather in files: the store has the keys that it began
// with, and the directory no file.
func TestNothingIsLeft(t *testing.T) {
	o, meet := gather.Options{Dir: t.TempDir()}, testcluster.Store(t)()
	require.NoError(t, meet.Set(t.Context(), "own", nil, nil))
	for k := range testcluster.Form(5, 1000) {
		job{n: 2, meet: meet, runID: strconv.Itoa(k), o: o}.run(t, func(r *rank) {
			r.gathers([]int{1, 0}, k, 100)
			_, err := r.group.Store().Add(r.ctx, "of the group", 1)
			assert.NoError(r, err)
		})
	}
	testcluster.Eventually(t, 20*time.Second, func() bool {
		keys := 0
		for _, err := range meet.List(t.Context(), "") {
			require.NoError(t, err)
			keys++
		}
		return keys == 1
	}, "the keys of the groups are deleted")
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestALeftOverGenerationOfAnyNumber restarts a run in whose workspace a killed one has left a
// generation, with any number, even one from a clock that was ahead.
func TestALeftOverGenerationOfAnyNumber(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	again := func() {
		job{n: 2, runID: "again", o: o}.run(t, func(r *rank) { r.gathers([]int{1, 0}, 10, 1000) })
	}
	again()
	left := filepath.Join(o.Dir, "group-world.run-again")
	require.NoError(t, os.MkdirAll(nfsws.GenerationDir(left, 1<<62), 0o755))
	again()
	require.NoDirExists(t, left)
}

// ranksVar sets how many ranks TestManyRanks has. With 2000 it takes 25 s on two cores.
const ranksVar = "MUSTER_TEST_RANKS"

// TestManyRanks gathers from more ranks than the number of handshakes that a mesh runs at a time
// for unauthenticated peers. All of them connect to the first rank at once.
func TestManyRanks(t *testing.T) {
	n := 300
	if s := os.Getenv(ranksVar); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	for _, w := range []way{{name: "TCP", apart: true}, {name: "memory"}} {
		t.Run(w.name, func(t *testing.T) {
			job{way: w, n: n, span: 3 * time.Minute}.run(t, func(r *rank) {
				r.gathers(ranks, 0, 4)
				assert.NoError(r, r.group.Barrier(r.ctx), fmt.Sprint("rank ", r.me()))
			})
		})
	}
}
