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

// supervise is the job's own goroutine: it starts the ranks, reports to started, and decides about
// them until the last has ended. It keeps its thread all that time, for Pdeathsig (see the package
// comment).
func (j *Job) supervise(ctx context.Context, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(j.done)
	defer j.parentPipe.release()

	if err := j.startAll(ctx); err != nil {
		j.killStarted()
		started <- err
		return
	}
	started <- nil
	j.err = j.waitAll(ctx)
}

func (j *Job) startAll(ctx context.Context) error {
	if j.spec.ParentPipe {
		if err := j.parentPipe.open(); err != nil {
			return fmt.Errorf("start ranks: %w", err)
		}
		defer j.parentPipe.started()
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
	log, err := j.spec.Log(rank)
	if err != nil {
		return nil, err
	}
	streams, err := j.out.connect(cmd, j.spec.Prefix(rank), log)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		streams.closePipes()
		return nil, err
	}
	p := &Process{rank: rank, cmd: cmd, streams: streams, done: make(chan struct{})}
	streams.copy()
	go p.watch(j)
	return p, nil
}

func (j *Job) command(rank int) *exec.Cmd {
	cmd := exec.Command(j.spec.Path, j.spec.Args...)
	cmd.Env = append(cmd.Environ(), j.spec.Env(rank)...)
	cmd.ExtraFiles = j.spec.Files
	cmd.SysProcAttr = processAttr()
	if r := j.parentPipe.read; r != nil {
		cmd.Stdin = r // not set to a nil *os.File: that is no nil io.Reader
	}
	return cmd
}

// killStarted kills the ranks that were started before one could not be.
func (j *Job) killStarted() {
	j.Signal(syscall.SIGKILL)
	for _, p := range j.procs {
		<-p.done
	}
}

// waitAll waits for the ranks, ends all of them Spec.Notice after the first failure, at the end of
// the context, or when their output no longer has a reader, and returns why.
func (j *Job) waitAll(ctx context.Context) error {
	var cause error
	var notice, kill <-chan time.Time
	ending := false
	end := func(why error) {
		if cause == nil {
			cause = why
		}
		if !ending {
			ending, kill = true, j.terminate()
		}
	}
	stop, closed := ctx.Done(), j.out.closed
	for left := len(j.procs); left > 0; {
		select {
		case e := <-j.ended:
			if e == nil {
				left--
				break
			}
			j.failures = append(j.failures, e)
			if cause != nil {
				break
			}
			if cause = e; j.spec.Notice >= 0 {
				notice = time.After(j.spec.Notice)
			}
		case <-notice:
			end(nil)
		case <-closed:
			closed = nil
			end(j.out.failure())
		case <-stop:
			stop = nil
			end(fmt.Errorf("ranks ended: %w", context.Cause(ctx)))
		case <-kill:
			j.Signal(syscall.SIGKILL)
		}
	}
	if cause == nil {
		cause = j.out.failure()
	}
	return cause
}

// terminate asks all ranks to end. The channel that it returns says when to kill them.
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

// ExitError is the failure of a rank.
type ExitError struct {
	Rank   int
	Code   int            // exit status; -1 if it was killed or its end is unknown
	Signal syscall.Signal // that killed it; 0 if it exited

	cause error // why its end is unknown
}

// exitError returns nil for a process that succeeded. waitErr is the error of waiting for it.
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

// Error returns "rank 2: exit status 3" or "rank 2: killed by signal 9".
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

// Unwrap returns the error of waiting for the rank, if there was one.
func (e *ExitError) Unwrap() error { return e.cause }

// ExitCode returns the exit status as a shell does: 128 plus the signal if a signal killed the
// rank.
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
