// Package testcluster has faults for our tests: processes that are killed or frozen,
// and connections that are slow, torn or silent.
//
//	func TestMain(m *testing.M) { testcluster.Leaks(m) } // nothing may be left over
//
//	proxy := testcluster.NewProxy(t, server.Addr())
//	client := dial(proxy.Addr())
//	proxy.Delay(5 * time.Millisecond) // both ways
//	proxy.Down.Blackhole(true)        // the client hears nothing any more
//	proxy.Cut(testcluster.RST)        // its host has restarted
//
//	testcluster.Freeze(t, job.Process(2)) // alive to the network, silent to its peers
//	testcluster.Kill(t, job.Process(2))
//
// Everything here returns when its effect is there, so that no test needs to sleep.
package testcluster

import (
	"os"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 10 * time.Second     // for what the kernel does at once on a machine that is not stuck
	tick     = 2 * time.Millisecond // between two looks at what tells nobody
)

// Process is a process that somebody waits for: *launch.Process is one.
type Process interface {
	Pid() int
	Signal(os.Signal) error
	Done() <-chan struct{} // closed when the process has ended and is reaped
}

// Kill kills the process as kill -9 does, and returns when it has ended.
func Kill(t testing.TB, p Process) {
	t.Helper()
	signal(t, p, syscall.SIGKILL)
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("process %d still there %v after SIGKILL", p.Pid(), patience)
	}
}

// Freeze stops the process and returns when all its threads stand still (its children,
// if Signal reaches them, may take a moment longer). Its connections stay open, as those
// of a suspended or swapped-out machine do.
func Freeze(t testing.TB, p Process) {
	t.Helper()
	signal(t, p, syscall.SIGSTOP)
	await(t, p, "stopped", func() bool { return stopped(p.Pid()) })
}

// Thaw lets a frozen process go on, and returns when it does.
func Thaw(t testing.TB, p Process) {
	t.Helper()
	signal(t, p, syscall.SIGCONT)
	await(t, p, "running", func() bool { return !stopped(p.Pid()) })
}

func signal(t testing.TB, p Process, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatalf("send signal %d to process %d: %v", int(sig), p.Pid(), err)
	}
}

func await(t testing.TB, p Process, state string, reached func() bool) {
	t.Helper()
	ended := func() bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	}
	Eventually(t, patience, func() bool { return ended() || reached() }, "process is not "+state)
	if ended() {
		t.Fatalf("process %d ended before it was %s", p.Pid(), state)
	}
}

// Alive reports whether a process runs or is stopped; a zombie is dead.
func Alive(pid int) bool { return alive(pid) }

// Eventually waits until cond holds, and fails the test if it does not within the
// time given. It is for what has no event to wait for; it looks at once, and then
// every few milliseconds. cond runs on the caller's goroutine.
func Eventually(t testing.TB, within time.Duration, cond func() bool, msg string) {
	t.Helper()
	if !holdsWithin(within, cond) {
		t.Fatalf("not within %v: %s", within, msg)
	}
}

func holdsWithin(d time.Duration, cond func() bool) bool {
	timeout := time.NewTimer(d)
	defer timeout.Stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for !cond() {
		select {
		case <-timeout.C:
			return cond()
		case <-ticker.C:
		}
	}
	return true
}
