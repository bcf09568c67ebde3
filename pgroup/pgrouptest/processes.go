package pgrouptest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
)

// processes is how a Job runs: the test binary, started again in n processes with the name of the test.
//
// The first process that fails ends the others, and its output is printed first. No process is left when
// the test has ended, however it ends: each is the leader of a process group, and dies with the process of
// the test. If the job does not end in time, blame names the cause, and the output has the stacks of all
// goroutines of all processes. The coverage of the processes counts for that of the test.
type processes struct {
	n       int
	env     []string      // added to the environment of each process
	mayFail []int         // ranks whose failure is part of the test
	timeout time.Duration // of the whole job; default a minute, and at most that of the test binary

	// blame returns what to add to the error of a job that hangs, and the rank that the others wait for,
	// or -1. It runs in the process of the test, before that ends the others.
	blame func() (why string, rank int)
}

// process is one of the processes, as its own function sees it.
type process struct {
	rank int
	left time.Duration // for its operations: longer than the job, which reports a hang before they do
	fail sync.Once
}

// failed reports that this process has failed, before others fail because of it: the first that reports it
// is named as the cause.
func (p *process) failed() {
	p.fail.Do(func() { _, _ = os.NewFile(failures, "failures").WriteString(strconv.Itoa(p.rank) + "\n") })
}

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

// child reports whether this process is one of a job.
func child() bool { return os.Getenv(envCall) != "" }

// calls counts the calls of run by test: a process runs the call that it was started for. A test that
// -count repeats is another *testing.T.
var calls = struct {
	sync.Mutex
	made map[*testing.T]int
}{made: map[*testing.T]int{}}

// run runs f in j.n processes, and fails t if one of them fails. Code before run in the test function runs
// in each process too; code after it runs in the test alone.
func (j processes) run(t *testing.T, f func(t *testing.T, p *process)) {
	t.Helper()
	calls.Lock()
	if calls.made[t]++; calls.made[t] == 1 {
		t.Cleanup(func() {
			calls.Lock()
			defer calls.Unlock()
			delete(calls.made, t)
		})
	}
	call := fmt.Sprintf("%s#%d", t.Name(), calls.made[t])
	calls.Unlock()
	switch os.Getenv(envCall) {
	case "":
		j.start(t, call)
	case call:
		j.runChild(t, f)
	}
}

// runChild runs f as a process of the job. The test ends with it: code after run does not run here.
func (j processes) runChild(t *testing.T, f func(t *testing.T, p *process)) {
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
	p := &process{rank: rank, left: left}
	defer func() {
		if t.Failed() {
			p.failed()
		}
	}()
	f(t, p)
	t.SkipNow()
}

// limit returns the timeout of the job.
func (j processes) limit(t *testing.T) time.Duration {
	limit := j.timeout
	if limit == 0 {
		limit = time.Minute
		if at, ok := t.Deadline(); ok {
			limit = max(min(limit, time.Until(at)-reportMargin), time.Second)
		}
	}
	return limit
}

func (j processes) failureAllowed(rank int) bool { return slices.Contains(j.mayFail, rank) }
