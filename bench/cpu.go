package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// cpuTime is the CPU time that the threads of a process have had, user and system; 0 where there is no /proc.
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

// residentBytes is the resident memory of this process; 0 where there is no /proc.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := bytes.Fields(b)
	pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}

// loadAverage is how busy the machine is, in the kernel's words.
func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return string(bytes.TrimSpace(b))
}
