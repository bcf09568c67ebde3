// Package testcluster injects faults in our tests: processes that are killed or frozen, and
// connections that are slow, broken or silent.
//
//	func TestMain(m *testing.M) { testcluster.Leaks(m) } // fails if anything is left over
//
//	proxy := testcluster.NewProxy(t, server.Addr())
//	client := dial(proxy.Addr())
//	proxy.Delay(5 * time.Millisecond) // in both directions
//	proxy.Down.Blackhole(true)        // the client receives nothing from now on
//	proxy.Cut(testcluster.RST)        // as if the host had restarted
//
//	testcluster.Freeze(t, job.Process(2)) // its connections stay open, and send nothing
//	testcluster.Kill(t, job.Process(2))
//
// The functions return when the fault is in effect, so that no test needs to sleep.
package testcluster

import (
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
)

const (
	// for operations that the kernel carries out at once unless the machine is overloaded
	kernelTimeout = 10 * time.Second
	tick          = 2 * time.Millisecond // between two checks of a condition without an event
)

// Kill kills the process by SIGKILL, and returns when it has ended.
func Kill(t testing.TB, p *launch.Process) {
	t.Helper()
	signal(t, p, syscall.SIGKILL)
	select {
	case <-p.Done():
	case <-time.After(kernelTimeout):
		t.Fatalf("process %d still there %v after SIGKILL", p.Pid(), kernelTimeout)
	}
}

// Freeze stops the process, and returns when all of its threads are stopped; those of its children
// may take a moment longer. Its connections stay open, as those of a suspended machine.
func Freeze(t testing.TB, p *launch.Process) {
	t.Helper()
	signal(t, p, syscall.SIGSTOP)
	await(t, p, "stopped", func() bool { return stopped(p.Pid()) })
}

// Thaw continues a frozen process, and returns when it runs.
func Thaw(t testing.TB, p *launch.Process) {
	t.Helper()
	signal(t, p, syscall.SIGCONT)
	await(t, p, "running", func() bool { return !stopped(p.Pid()) })
}

func signal(t testing.TB, p *launch.Process, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatalf("send signal %d to process %d: %v", int(sig), p.Pid(), err)
	}
}

func await(t testing.TB, p *launch.Process, state string, reached func() bool) {
	t.Helper()
	ended := func() bool {
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	}
	Eventually(t, kernelTimeout, func() bool { return ended() || reached() }, "process is not "+state)
	if ended() {
		t.Fatalf("process %d ended before it was %s", p.Pid(), state)
	}
}

// Eventually waits until cond holds, and fails the test if it does not within the given time. It is
// for conditions without an event: it checks at once, and then every few milliseconds. cond runs on
// the caller's goroutine.
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
