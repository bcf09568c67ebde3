package main

import (
	"bytes"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guardAttr puts the guard into a separate process group, so that what ends the group of "muster
// run" does not end the guard.
func guardAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ignoreSignals keeps the guard through the end of a terminal.
func ignoreSignals() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGTSTP)
}

const (
	guardPause     = 20 * time.Millisecond
	guardMostPause = time.Second
	guardClean     = 3 // scans in a row that find nothing: a process may be between fork and exec
)

// endMarked kills the processes with a mark until there are none. The pauses grow, since a process that
// waits for a disk may take long to end.
func endMarked(mark string) {
	pause := guardPause
	for clean := 0; clean < guardClean; clean++ {
		if killMarked(mark) > 0 {
			clean = -1
			pause = min(2*pause, guardMostPause)
		}
		time.Sleep(pause)
	}
}

// killMarked kills the processes of this session that have the mark, and returns their number. Those
// that have begun another session (daemons) are left, as by launch.
func killMarked(mark string) (n int) {
	session, err := unix.Getsid(0)
	if err != nil {
		return 0
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, env...), append([]byte("\x00"+mark), 0)) {
			continue // also a process of another user, a zombie, or one that has just ended
		}
		if of, err := unix.Getsid(pid); err == nil && of == session && unix.Kill(pid, unix.SIGKILL) == nil {
			n++
		}
	}
	return n
}
