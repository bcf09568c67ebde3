package testcluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/procfs"
)

// stopped checks every thread: the first one stops before the last, so a process may be stopped in
// part.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(procPath(pid, "task/*/stat"))
	for _, stat := range tasks {
		if s, ok := procfs.Read(stat); ok && !s.Stopped() && !s.Ended() {
			return false
		}
	}
	return len(tasks) > 0
}

// Alive reports whether a process runs or is stopped; a zombie is not alive.
func Alive(pid int) bool {
	s, ok := procfs.Process(pid)
	return ok && !s.Ended()
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
	self := os.Getpid()
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		s, ok := procfs.Read(stat)
		if !ok || s.Parent != self {
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
