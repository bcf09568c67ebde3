// Package proctest runs a test function in several processes under go test: the test binary, started
// again with the name of the test.
//
//	func TestLock(t *testing.T) {
//		proctest.Run(t, 4, func(t *testing.T, p *proctest.Proc) {
//			lock(t, p.Rank()) // in each of 4 processes
//		})
//	}
//
// The first process that fails ends the others, and its output is printed first. If the processes hang,
// the stacks of all their goroutines are printed. No process is left when the test has ended, however it
// ends. The coverage of the processes counts for that of the test (go test -cover, -coverprofile), and
// -race, -short, -count and -v work as in other tests.
//
// The package needs a Unix system, and nothing but the standard library. Package pgrouptest adds groups.
package proctest

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Job is N processes. It needs no TestMain. Code before Run in the test function runs in each process,
// too; code after it runs in the test alone.
type Job struct {
	N       int
	Env     []string      // added to the environment of each process
	MayFail []int         // ranks whose failure is part of the test
	Timeout time.Duration // of the whole job; default a minute, and at most that of the test binary

	// Blame, if not nil, returns what to add to the error of a job that hangs. Run calls it in the
	// process of the test, before it ends the others.
	Blame func() string
}

// Proc is one of the processes, as its own function sees it.
type Proc struct {
	rank, size int
	left       time.Duration
	fail       sync.Once
}

// Rank returns the number of this process, from 0.
func (p *Proc) Rank() int { return p.rank }

// Size returns the number of processes.
func (p *Proc) Size() int { return p.size }

// Timeout returns a time for operations of this process that is longer than the job: the job reports a hang
// before they do.
func (p *Proc) Timeout() time.Duration { return p.left }

// Fail reports that this process has failed. Run does so when the function returns; before that, Fail is for
// a function that makes other processes fail: the first that reports it is named as the cause.
func (p *Proc) Fail() {
	p.fail.Do(func() { _, _ = os.NewFile(failures, "failures").WriteString(strconv.Itoa(p.rank) + "\n") })
}

// failures is the descriptor of the pipe to which a process writes its rank when it fails.
const failures = 3

// Environment variables of a process.
const (
	envCall    = "PROCTEST_CALL" // name of the test, and the number of the call of Run in it
	envRank    = "PROCTEST_RANK"
	envTimeout = "PROCTEST_TIMEOUT"
)

// Child reports whether this process is one that Run has started.
func Child() bool { return os.Getenv(envCall) != "" }

// calls counts the calls of Run by test: a process runs the call that it was started for. A test that
// -count repeats is another *testing.T.
var calls = struct {
	sync.Mutex
	made map[*testing.T]int
}{made: map[*testing.T]int{}}

// Run is Job{N: n}.Run.
func Run(t *testing.T, n int, f func(t *testing.T, p *Proc)) {
	t.Helper()
	Job{N: n}.Run(t, f)
}

// Run runs f in j.N processes, and fails t if one of them fails. The first process that fails ends the
// others, and its output is printed first; with -v all output is printed as it comes. If the job does not
// end in time, the output has the stacks of all goroutines of all processes.
func (j Job) Run(t *testing.T, f func(t *testing.T, p *Proc)) {
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
		j.child(t, f)
	}
}

// child runs f as a process of the job. The test ends with it: code after Run does not run here.
func (j Job) child(t *testing.T, f func(t *testing.T, p *Proc)) {
	t.Helper()
	syscall.CloseOnExec(failures)
	exitWithParent()
	rank, err := strconv.Atoi(os.Getenv(envRank))
	if err != nil {
		t.Fatal(err)
	}
	left, err := time.ParseDuration(os.Getenv(envTimeout))
	if err != nil {
		t.Fatal(err)
	}
	p := &Proc{rank: rank, size: j.N, left: left}
	p.run(t, f)
	t.SkipNow()
}

func (p *Proc) run(t *testing.T, f func(t *testing.T, p *Proc)) {
	defer func() { // also when f ends its goroutine, as t.Fatal does
		if r := recover(); r != nil {
			t.Errorf("panic: %v\n%s", r, debug.Stack())
		}
		if t.Failed() {
			p.Fail()
		}
	}()
	f(t, p)
}

// reportMargin is how long before the timeout of the test binary a job ends by itself, to report why.
const reportMargin = 5 * time.Second

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

func (j Job) mayFail(rank int) bool { return slices.Contains(j.MayFail, rank) }
