//go:build unix && !linux

package launch

import "syscall"

// processAttr gives a rank its own group. There is no Pdeathsig here: only a rank
// with Spec.ParentPipe notices a kill -9 of this process.
func processAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reap waits for the rank's end. Between the reaping and mu, a signal could reach a
// process that was given the same number within those microseconds; numbers go
// round slowly enough.
func (p *Process) reap() error {
	err := p.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = !groupRuns(p.Pid())
	return err
}

// groupRuns reports whether the group has a process that can be signalled, which
// leaves out zombies.
func groupRuns(group int) bool { return syscall.Kill(-group, 0) == nil }
