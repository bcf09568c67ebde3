package launch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

// soon is for what happens at once on a machine that is not stuck. Ranks that are to be
// outlived block for an hour.
const soon = 30 * time.Second

func TestAllEndWell(t *testing.T) {
	job := start(t, spec(4, "exit:0"))
	require.NoError(t, job.ends(t))
	for rank := range 4 {
		p := job.Process(rank)
		assert.NoError(t, p.Err(), "rank %d", rank)
		assert.ErrorIs(t, p.Signal(syscall.SIGKILL), os.ErrProcessDone)
	}
}

func TestMayFail(t *testing.T) {
	s := spec(3, "polite")
	s.MayFail = func(rank int) bool { return rank == 1 }
	job := start(t, s)
	job.await(t, "ready", 3)
	testcluster.Kill(t, job.Process(1))
	assert.EqualError(t, job.Process(1).Err(), "rank 1: killed by signal 9")
	job.Signal(syscall.SIGUSR1) // the others have installed their handlers
	assert.NoError(t, job.ends(t))
	job.await(t, "received user defined signal 1", 2)
}

func TestContextEndsRanks(t *testing.T) {
	job := start(t, spec(3, "polite"))
	job.await(t, "ready", 3)
	why := errors.New("enough")
	job.cancel(why)
	assert.ErrorIs(t, job.ends(t), why)
	job.await(t, "received terminated", 3) // the grace was theirs
}

func TestGrace(t *testing.T) {
	for name, grace := range map[string]time.Duration{"short": 50 * time.Millisecond, "none": -1} {
		t.Run(name, func(t *testing.T) {
			s := spec(2, "stubborn")
			s.Grace = grace
			job := start(t, s)
			job.await(t, "ready", 2)
			asked := time.Now()
			job.cancel(nil)
			assert.ErrorIs(t, job.ends(t), context.Canceled)
			assert.GreaterOrEqual(t, time.Since(asked), grace)
			assert.EqualError(t, job.Process(0).Err(), "rank 0: killed by signal 9")
		})
	}
}

func TestFrozenRankIsEnded(t *testing.T) {
	s := spec(1, "polite")
	s.Grace = time.Hour
	job := start(t, s)
	job.await(t, "ready", 1)
	testcluster.Freeze(t, job.Process(0))
	job.cancel(nil)
	_ = job.ends(t)
	job.await(t, "received terminated", 1)
}

func TestSignalKillsWithoutGrace(t *testing.T) {
	s := spec(2, "stubborn")
	s.Grace = time.Hour
	job := start(t, s)
	job.await(t, "ready", 2)
	job.cancel(nil)
	job.Signal(syscall.SIGKILL)
	assert.Error(t, job.ends(t), "no error")
}

func TestChildrenOfRanksGoToo(t *testing.T) {
	for _, mode := range []string{"family", "leave"} {
		for _, child := range []string{"block", "stubborn"} {
			t.Run(mode+" "+child, func(t *testing.T) {
				s := spec(2, mode+":"+child)
				s.Grace = 50 * time.Millisecond
				job := start(t, s)
				children := append(job.await(t, "child", 2), job.await(t, "ready", 2)...)
				if mode == "family" {
					job.cancel(nil)
				}
				assert.Equal(t, mode == "leave", job.ends(t) == nil)
				allGone(t, children)
			})
		}
	}
}

// TestFailureDoesNotWaitForLeftovers has a rank fail whose child will not go.
func TestFailureDoesNotWaitForLeftovers(t *testing.T) {
	s := spec(2, "family:stubborn")
	s.Grace = time.Hour
	called := make(chan struct{}, s.N)
	s.Failed = func() { called <- struct{}{} }
	job := start(t, s)
	children := job.await(t, "ready", 2)
	_ = syscall.Kill(job.Process(0).Pid(), syscall.SIGKILL) // only the rank itself
	testcluster.Eventually(t, soon, func() bool { return !testcluster.Alive(job.Process(1).Pid()) }, "rank 1 is ended")
	<-called
	job.Signal(syscall.SIGKILL) // reaches the children, though both ranks have ended
	assert.EqualError(t, job.ends(t), "rank 0: killed by signal 9")
	assert.Empty(t, called, "the failure of rank 1 follows")
	allGone(t, children)
}

// TestEscapedChildHoldsNothingUp leaves a process behind that has the output open.
func TestEscapedChildHoldsNothingUp(t *testing.T) {
	job := start(t, spec(1, "escape:block"))
	pid := job.await(t, "child", 1)[0]
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	assert.NoError(t, job.ends(t))
}

func TestParentKilled(t *testing.T) {
	for _, mode := range []string{"block", "stubborn"} {
		t.Run(mode, func(t *testing.T) {
			job := start(t, spec(1, "parent:"+mode))
			ranks := job.await(t, "ready", 3)
			// Itself, and not its group, though its ranks lead their own anyway.
			_ = syscall.Kill(job.Process(0).Pid(), syscall.SIGKILL)
			allGone(t, ranks)
			_ = job.ends(t)
		})
	}
}

// TestStartingThreadEnds has the thread of the caller end, which is the end of the parent
// to the kernel if it started the ranks.
func TestStartingThreadEnds(t *testing.T) {
	s := spec(2, "polite")
	jobs := make(chan *launch.Job)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		job, err := launch.Start(t.Context(), s)
		assert.NoError(t, err)
		jobs <- job
	}()
	said, _ := s.Output.(*sayings)
	job := trial{<-jobs, said, nil}
	job.await(t, "ready", 2)
	job.Signal(syscall.SIGUSR1)
	assert.NoError(t, job.ends(t))
}

// TestExitWithParentPipe does without what the kernel does for launched ranks.
func TestExitWithParentPipe(t *testing.T) {
	var said sayings
	cmd := exec.Command(self())
	cmd.Env = append(os.Environ(), spec(1, "parentpipe:stubborn").Env(0)...)
	cmd.Stdout = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	parent, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said.await(t, "child", 1)
	child := said.await(t, "ready", 1)
	parent.Close()
	assert.Error(t, cmd.Wait(), "it ended well")
	allGone(t, child)
}

// TestExitWithoutParentPipe is a program that is run by hand.
func TestExitWithoutParentPipe(t *testing.T) {
	assert.NoError(t, start(t, spec(1, "free")).ends(t))
}

// TestStartFailureKillsThoseStarted has the third of three ranks fail to start.
func TestStartFailureKillsThoseStarted(t *testing.T) {
	s := spec(3, "stubborn")
	said, env := s.Output.(*sayings), s.Env
	s.ParentPipe = true
	s.Env = func(rank int) []string {
		if rank < 2 {
			return env(rank)
		}
		for end := time.Now().Add(soon); len(said.find("ready")) < 2 && time.Now().Before(end); {
			<-time.After(time.Millisecond)
		}
		return []string{"a variable with a \x00 in it"}
	}
	_, err := launch.Start(t.Context(), s)
	assert.True(t, strings.HasPrefix(fmt.Sprint(err), "start rank 2: "), "error %v", err)
	allGone(t, said.await(t, "ready", 2))
}

func TestStartAfterContextEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := launch.Start(ctx, spec(2, "block"))
	assert.ErrorIs(t, err, context.Canceled)
}

// trial is a job of a test, with what its ranks say and what ends it.
type trial struct {
	*launch.Job
	*sayings
	cancel context.CancelCauseFunc
}

// start starts a job that ends with the test at the latest.
func start(t *testing.T, s launch.Spec) trial {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	job, err := launch.Start(ctx, s)
	require.NoError(t, err)
	t.Cleanup(func() {
		job.Signal(syscall.SIGKILL)
		<-job.Done()
	})
	said, _ := s.Output.(*sayings)
	return trial{job, said, cancel}
}

func (job trial) ends(t *testing.T) error {
	t.Helper()
	select {
	case <-job.Done():
		return job.Wait()
	case <-time.After(soon):
		t.Fatalf("the job has not ended in %v", soon)
		return nil
	}
}

func allGone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		testcluster.Eventually(t, soon, func() bool { return !testcluster.Alive(pid) }, fmt.Sprintf("process %d is gone", pid))
	}
}
