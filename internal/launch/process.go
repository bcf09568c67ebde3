package launch

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	groupTick = 5 * time.Millisecond // between two checks of a process group that is to end: the kernel sends no event
	killWait  = 5 * time.Second      // for a killed process group; a process that remains is blocked in the kernel
)

// Process is one rank. Its methods may be called from any goroutine.
type Process struct {
	rank    int
	cmd     *exec.Cmd
	streams *streams

	done chan struct{}
	err  *ExitError // written before done closes

	mu         sync.Mutex // protects the fields below; held while signalling
	terminated bool       // the group was sent SIGTERM, or is to end without it
	gone       bool       // the group is empty: its number may be reused
}

// Pid returns the process's number, which is also its group's.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the rank has ended, what it left behind in its group is gone,
// and its output is written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the rank ended, when Done is closed: nil or an *ExitError, also for
// ranks that may fail. Before that it is nil.
func (p *Process) Err() error {
	select {
	case <-p.done:
		if p.err != nil { // a nil *ExitError is no nil error
			return p.err
		}
	default:
	}
	return nil
}

// Tail returns the last lines that the rank has written so far, at most 10 of both streams, each cut
// to 1 KiB. A stream that is discarded has none.
func (p *Process) Tail() []string { return p.streams.record.last() }

// Signal sends sig to the rank and its children. It returns os.ErrProcessDone if all
// have ended.
func (p *Process) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal rank %d: %v is not a signal of this system", p.rank, sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signalLocked(s)
}

// signalLocked needs mu: reaping takes it too, so that the group's number is still
// ours when the signal goes out.
func (p *Process) signalLocked(s syscall.Signal) error {
	if p.gone {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("kill", syscall.Kill(-p.Pid(), s))
}

// spareSIGTERM has terminate do nothing.
func (p *Process) spareSIGTERM() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.terminated = true
}

// terminate sends SIGTERM to the group, once: some programs take a second one as a request to exit
// at once. SIGCONT lets a stopped process receive it.
func (p *Process) terminate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminated {
		return
	}
	p.terminated = true
	_ = p.signalLocked(syscall.SIGTERM) // one that has ended needs none
	_ = p.signalLocked(syscall.SIGCONT)
}

// watch is the rank's own goroutine. It reports a failure before it ends the rest of the group:
// that can take the whole grace, and the other ranks must not wait for it.
func (p *Process) watch(j *Job) {
	waitErr := p.reap()
	p.err = exitError(p.rank, p.cmd.ProcessState, waitErr)
	if p.err != nil && !j.spec.MayFail(p.rank) {
		j.ended <- p.err
		j.failed.Do(j.spec.Failed)
	}
	p.endGroup(j.spec.Grace)
	if err := p.streams.finish(); err != nil {
		j.out.fail(fmt.Errorf("write the log of rank %d: %w", p.rank, err))
	}
	close(p.done)
	j.ended <- nil
}

// endGroup ends what the rank left behind in its group.
func (p *Process) endGroup(grace time.Duration) {
	if p.groupEmpty() {
		return
	}
	p.terminate()
	if p.groupEmptyWithin(grace) {
		return
	}
	_ = p.Signal(syscall.SIGKILL)
	if p.groupEmptyWithin(killWait) {
		return
	}
	p.mu.Lock()
	p.gone = true // out of reach of any signal
	p.mu.Unlock()
}

// groupEmpty reports whether the group no longer has a process, and is the only place that sets
// gone. The number of a group with members is not reused.
func (p *Process) groupEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = p.gone || !groupRuns(p.Pid())
	return p.gone
}

func (p *Process) groupEmptyWithin(d time.Duration) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	tick := time.NewTicker(groupTick)
	defer tick.Stop()
	for {
		if p.groupEmpty() {
			return true
		}
		select {
		case <-timeout.C:
			return p.groupEmpty()
		case <-tick.C:
		}
	}
}
