package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// cpuTime returns the CPU time that the threads of a process have used, user and system, or 0 if
// there is no /proc.
func cpuTime(pid int) (sum time.Duration) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		ns, _, _ := bytes.Cut(b, []byte(" "))
		n, _ := strconv.ParseInt(string(ns), 10, 64)
		sum += time.Duration(n)
	}
	return sum
}

// loadAverage returns the kernel's load averages as text.
func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return string(bytes.TrimSpace(b))
}

// machineTime returns the CPU time that all CPUs have spent on all processes since boot, or 0 if
// there is no /proc.
func machineTime() (busy time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all systems
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	for i, f := range bytes.Fields(line) { // cpu user nice system idle iowait irq softirq steal guest guest_nice
		if n, err := strconv.ParseInt(string(f), 10, 64); err == nil && i != 4 && i != 5 && i <= 8 {
			busy += time.Duration(n) * tick
		}
	}
	return busy
}

// watch measures how much of the machine other processes use during a measurement.
type watch struct {
	began time.Time
	busy  time.Duration
}

func startWatch() watch { return watch{time.Now(), machineTime()} }

// others returns the share of the CPU time since the start that other processes used, given that
// the measured ones used ours.
func (w watch) others(ours time.Duration) float64 {
	all := time.Since(w.began) * time.Duration(runtime.NumCPU())
	return max(0, float64(machineTime()-w.busy-ours)/float64(all))
}
