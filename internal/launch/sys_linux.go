package launch

import (
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/procfs"
)

// processAttr gives a rank its own group, and has the kernel kill it when the thread
// that starts it ends: that is the job's own, which ends with this process only.
func processAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits for the rank's end. The wait itself leaves the rank unreaped, so that
// its number stays its own until mu is held and no signal can be under way.
func (p *Process) reap() error {
	for {
		err := unix.Waitid(unix.P_PID, p.Pid(), nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break // Wait below returns any other error
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.cmd.Wait()
	p.gone = !groupRuns(p.Pid())
	return err
}

// groupRuns reports whether a process of the group runs. A zombie does not.
func groupRuns(group int) bool {
	if unix.Kill(-group, 0) != nil {
		return false
	}
	pids, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	return slices.ContainsFunc(pids, func(e os.DirEntry) bool {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			return false
		}
		s, ok := procfs.Process(pid)
		return ok && s.Group == group && !s.Ended()
	})
}
