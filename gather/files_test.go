package gather_test

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/nfsws"
)

// TestJobsShareADirectory runs jobs with the default name, or with one name and different runs, in
// one directory at the same time. None ends another, and jobs without a run leave no files.
func TestJobsShareADirectory(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	runs := []string{"", "", "a", "b"}
	var open atomic.Int64 // the number of ranks that have gathered
	var jobs sync.WaitGroup
	all := make(chan struct{}) // closed when all jobs have gathered
	for k, run := range runs {
		jobs.Go(func() {
			job{n: 2, runID: run, o: o}.run(t, func(r *rank) {
				r.gathers([]int{1, 0}, 100*k, 1000)
				if open.Add(1) == 2*int64(len(runs)) {
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
	assert.Len(t, left, 2, "the workspaces of runs")
	assert.Empty(t, filesIn(t, o.Dir))
}

// TestALeftOverGenerationOfAnyNumber restarts a run in whose workspace a killed one has left a
// generation, with any number, even one from a clock that was ahead.
func TestALeftOverGenerationOfAnyNumber(t *testing.T) {
	o := gather.Options{Dir: t.TempDir()}
	again := func() {
		job{n: 2, runID: "again", o: o}.run(t, func(r *rank) { r.gathers([]int{1, 0}, 10, 1000) })
	}
	again()
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.NoError(t, os.Mkdir(nfsws.GenerationDir(o.Dir+"/"+left[0].Name(), 1<<62), 0o777))
	again()
}
