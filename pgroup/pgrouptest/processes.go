package pgrouptest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
)

// needsParentPipe is set where the kernel does not end the processes with that of the test. Where it
// does, they have no goroutine that waits for its end: a check for leaks in the user's TestMain would find it.
const needsParentPipe = runtime.GOOS != "linux"

// failures is the descriptor of the pipe to which a process writes its rank when it fails.
const failures = 3

// Environment variables of a process.
const (
	envCall    = "PGROUPTEST_CALL" // name of the test, and the number of the call of Run in it
	envRank    = "PGROUPTEST_RANK"
	envTimeout = "PGROUPTEST_TIMEOUT"
)

// calls counts the calls of Job.Run by test: a process runs the call that it was started for. A test that
// -count repeats is another *testing.T.
var calls = struct {
	sync.Mutex
	made map[*testing.T]int
}{made: map[*testing.T]int{}}

// callOf returns the name of a call of Job.Run, the next one of the test.
func callOf(t *testing.T) string {
	calls.Lock()
	defer calls.Unlock()
	if calls.made[t]++; calls.made[t] == 1 {
		t.Cleanup(func() {
			calls.Lock()
			defer calls.Unlock()
			delete(calls.made, t)
		})
	}
	return fmt.Sprintf("%s#%d", t.Name(), calls.made[t])
}

// runChild runs f as a process of the job. The test ends with it: code after Run does not run here.
func (j Job) runChild(t *testing.T, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	syscall.CloseOnExec(failures)
	if needsParentPipe {
		launch.ExitWithParent()
	}
	rank, err := strconv.Atoi(os.Getenv(envRank))
	if err != nil {
		t.Fatal(err)
	}
	left, err := time.ParseDuration(os.Getenv(envTimeout))
	if err != nil {
		t.Fatal(err)
	}
	// The first rank that reports that it has failed, before others fail because of it, is named as the cause.
	failed := sync.OnceFunc(func() { _, _ = os.NewFile(failures, "failures").WriteString(strconv.Itoa(rank) + "\n") })
	defer func() {
		if t.Failed() {
			failed()
		}
	}()
	j.rank(t, rank, left, f, failed)
	t.SkipNow()
}

// limit returns the timeout of the job.
func (j Job) limit(t *testing.T) time.Duration {
	limit := j.Timeout
	if limit == 0 {
		limit = time.Minute
		if at, ok := t.Deadline(); ok {
			limit = max(min(limit, time.Until(at)-reportMargin), time.Second)
		}
	}
	return limit
}
