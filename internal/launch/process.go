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
	groupTick = 5 * time.Millisecond // between two looks at a group that is to end: nothing tells
	killWait  = 5 * time.Second      // for a killed group; what then remains hangs in the kernel
)

// Process is one rank. Its methods may be called from any goroutine.
type Process struct {
	rank    int
	cmd     *exec.Cmd
	streams *streams

	done chan struct{}
	err  *ExitError // written before done closes

	mu    sync.Mutex // protects the fields below; held while signalling
	asked bool       // the group has had its SIGTERM
	gone  bool       // the group is empty: its number may already be another's
}

// Rank returns the rank of the process.
func (p *Process) Rank() int { return p.rank }

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
	default:
		return nil
	}
	if p.err == nil {
		return nil
	}
	return p.err
}

// Signal sends sig to the rank and its children. It returns os.ErrProcessDone if all
// have ended.
func (p *Process) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal rank %d: %v is no signal here", p.rank, sig)
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

// terminate asks the group to end, once: some programs take a second SIGTERM for
// impatience. A stopped process hears it only when it is continued.
func (p *Process) terminate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked {
		return
	}
	p.asked = true
	_ = p.signalLocked(syscall.SIGTERM) // one that has ended needs none
	_ = p.signalLocked(syscall.SIGCONT)
}

// watch is the rank's own goroutine. The failure is told before the rest is tidied
// up: that can take the whole grace, and the other ranks must not wait for it.
func (p *Process) watch(j *Job) {
	waitErr := p.reap()
	p.err = exitError(p.rank, p.cmd.ProcessState, waitErr)
	if p.err != nil && !j.spec.MayFail(p.rank) {
		j.failed <- p.err
	}
	p.tidy(j.spec.Grace)
	p.streams.finish()
	close(p.done)
	j.gone <- struct{}{}
}

// tidy ends what the rank left behind in its group.
func (p *Process) tidy(grace time.Duration) {
	if p.emptied() {
		return
	}
	p.terminate()
	if p.emptiedWithin(grace) {
		return
	}
	_ = p.Signal(syscall.SIGKILL)
	if p.emptiedWithin(killWait) {
		return
	}
	p.mu.Lock()
	p.gone = true // out of reach of any signal
	p.mu.Unlock()
}

// emptied reports whether the group has no process any more, and is the only place
// where that is found out. The number of a group that has members is not given to
// anybody else.
func (p *Process) emptied() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = p.gone || !groupRuns(p.Pid())
	return p.gone
}

func (p *Process) emptiedWithin(d time.Duration) bool {
	if d <= 0 {
		return p.emptied()
	}
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	tick := time.NewTicker(groupTick)
	defer tick.Stop()
	for {
		if p.emptied() {
			return true
		}
		select {
		case <-timeout.C:
			return p.emptied()
		case <-tick.C:
		}
	}
}
