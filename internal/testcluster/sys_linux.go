package testcluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// stopped checks every thread: the first one stops before the last, so a process may be stopped in
// part.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(procPath(pid, "task/*/stat"))
	for _, stat := range tasks {
		switch state(stat) {
		case 'T', 't', 'Z', 'X', 0: // stopped, traced, or a thread that has just ended
		default:
			return false
		}
	}
	return len(tasks) > 0
}

// Alive reports whether a process runs or is stopped; a zombie is not alive.
func Alive(pid int) bool {
	switch state(procPath(pid, "stat")) {
	case 'Z', 'X', 0:
		return false
	}
	return true
}

// state returns the state in a stat file, or 0 if there is none.
func state(stat string) byte {
	f := behindName(stat)
	if len(f) == 0 {
		return 0
	}
	return f[0][0]
}

// behindName returns the words after "pid (name)" in a stat file: the state, the parent, and more. The
// name may contain any characters, including ')'.
func behindName(stat string) [][]byte {
	b, _ := os.ReadFile(stat) // of a process that has ended: none
	return bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// adoptOrphans makes this process the parent of its descendants' orphans, which
// would otherwise go to process 1 and not be counted.
func adoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// children lists the processes whose parent this one is. It does not use
// /proc/self/task/*/children, which many kernels are built without.
func children() []int {
	self := strconv.Itoa(os.Getpid())
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		f := behindName(stat)
		if len(f) < 2 || string(f[1]) != self {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func commandLine(pid int) string {
	b, _ := os.ReadFile(procPath(pid, "cmdline"))
	return string(bytes.TrimSpace(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
}
