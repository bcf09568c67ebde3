package testcluster

import "golang.org/x/sys/unix"

// The states of a process, from sys/proc.h.
const (
	stateStopped = 4
	stateZombie  = 5
)

func stopped(pid int) bool { return state(pid) == stateStopped }

// Alive reports whether a process runs or is stopped; a zombie is not alive.
func Alive(pid int) bool {
	s := state(pid)
	return s != 0 && s != stateZombie
}

// state returns the state of a process, or 0 if it does not exist.
func state(pid int) int8 {
	p, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0
	}
	return p.Proc.P_stat
}

// adoptOrphans does nothing on this system: only children are counted.
func adoptOrphans() error { return nil }

func children() []int {
	var pids []int
	procs, _ := unix.SysctlKinfoProcSlice("kern.proc.all")
	for _, p := range procs {
		if int(p.Eproc.Ppid) == unix.Getpid() {
			pids = append(pids, int(p.Proc.P_pid))
		}
	}
	return pids
}

func commandLine(int) string { return "" }
