package launch

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
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

// groupRuns reports whether a process of the group runs. A zombie does not: where
// process 1 does not reap, as in many containers, orphans stay zombies.
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
		return err == nil && runsIn(pid, group)
	})
}

func runsIn(pid, group int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// "pid (name) state parent group ...": the name may hold anything, ')' included.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 3 || string(f[2]) != strconv.Itoa(group) {
		return false
	}
	return f[0][0] != 'Z' && f[0][0] != 'X'
}
