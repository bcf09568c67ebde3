package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// supervise is the job's own goroutine: it starts the ranks, tells started, and
// decides about them until the last is gone. It keeps its thread all that time, for
// Pdeathsig (see the package comment).
func (j *Job) supervise(ctx context.Context, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(j.done)
	defer j.tether.release()

	if err := j.startAll(ctx); err != nil {
		j.abandon()
		started <- err
		return
	}
	started <- nil
	j.err = j.look(ctx)
}

func (j *Job) startAll(ctx context.Context) error {
	if j.spec.Tether {
		if err := j.tether.open(); err != nil {
			return fmt.Errorf("start ranks: %w", err)
		}
		defer j.tether.started()
	}
	for rank := range j.spec.N {
		if ctx.Err() != nil {
			return fmt.Errorf("start rank %d: %w", rank, context.Cause(ctx))
		}
		p, err := j.start(rank)
		if err != nil {
			return fmt.Errorf("start rank %d: %w", rank, err)
		}
		j.procs = append(j.procs, p)
	}
	return nil
}

func (j *Job) start(rank int) (*Process, error) {
	cmd := j.command(rank)
	streams, err := j.out.connect(cmd, j.spec.Prefix(rank))
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		streams.abandon()
		return nil, err
	}
	p := &Process{rank: rank, cmd: cmd, streams: streams, done: make(chan struct{})}
	streams.copy()
	go p.watch(j)
	return p, nil
}

func (j *Job) command(rank int) *exec.Cmd {
	cmd := exec.Command(j.spec.Path, j.spec.Args...)
	cmd.Dir = j.spec.Dir
	cmd.Env = append(cmd.Environ(), j.spec.Env(rank)...)
	cmd.SysProcAttr = processAttr()
	if r := j.tether.read; r != nil {
		cmd.Stdin = r // not set to a nil *os.File: that is no nil io.Reader
	}
	return cmd
}

// abandon kills the ranks that were started before one could not be.
func (j *Job) abandon() {
	j.Signal(syscall.SIGKILL)
	for range j.procs {
		<-j.gone
	}
}

// look waits for the ranks, ends them all at the first failure, at the context's end or
// when the reader of their output has gone away, and returns why.
func (j *Job) look(ctx context.Context) error {
	var cause error
	var kill <-chan time.Time
	end := func(why error) {
		if cause == nil {
			cause, kill = why, j.terminate()
		}
	}
	stop, closed := ctx.Done(), j.out.closed
	for left := len(j.procs); left > 0; {
		select {
		case e := <-j.failed:
			end(e)
		case <-closed:
			closed = nil
			end(j.out.failure())
		case <-stop:
			stop = nil
			end(fmt.Errorf("ranks ended: %w", context.Cause(ctx)))
		case <-kill:
			j.Signal(syscall.SIGKILL)
		case <-j.gone:
			left--
		}
	}
	return j.verdict(cause)
}

// verdict looks once more at the failures: the last rank's may have been ready
// together with its going.
func (j *Job) verdict(cause error) error {
	if cause != nil {
		return cause
	}
	select {
	case e := <-j.failed:
		return e
	default:
		return j.out.failure()
	}
}

// terminate asks every rank to end; what it returns says when to stop asking.
func (j *Job) terminate() <-chan time.Time {
	if j.spec.Grace < 0 {
		j.Signal(syscall.SIGKILL)
		return nil
	}
	for _, p := range j.procs {
		p.terminate()
	}
	return time.After(j.spec.Grace)
}

// ExitError says which rank failed, and how.
type ExitError struct {
	Rank   int
	Code   int            // exit status; -1 if it was killed or its end is not known
	Signal syscall.Signal // what killed it; 0 if it exited

	cause error // why its end is not known
}

// exitError returns nil for a process that ended well. waitErr is what waiting for
// it returned.
func exitError(rank int, state *os.ProcessState, waitErr error) *ExitError {
	if state == nil {
		return &ExitError{Rank: rank, Code: -1, cause: waitErr}
	}
	if state.Success() {
		return nil
	}
	e := &ExitError{Rank: rank, Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	return e
}

// Error is "rank 2: exit status 3" or "rank 2: killed by signal 9".
func (e *ExitError) Error() string {
	switch {
	case e.cause != nil:
		return fmt.Sprintf("rank %d: wait for its end: %v", e.Rank, e.cause)
	case e.Signal != 0:
		return fmt.Sprintf("rank %d: killed by signal %d", e.Rank, int(e.Signal))
	default:
		return fmt.Sprintf("rank %d: exit status %d", e.Rank, e.Code)
	}
}

// Unwrap returns the error of waiting for the rank, if that is what failed.
func (e *ExitError) Unwrap() error { return e.cause }

// ExitCode is what a shell would say: the exit status, or 128 plus the signal.
func (e *ExitError) ExitCode() int {
	switch {
	case e.Signal != 0:
		return 128 + int(e.Signal)
	case e.Code < 0:
		return 1
	default:
		return e.Code
	}
}
