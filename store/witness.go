package store

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// witness observes the process of a peer on this host, through procfs. A process that does not answer
// probes because a thread of it holds a lock, such as Python's GIL, runs all the same: it is late,
// and not failed. One that is stopped, or waits in the kernel, uses no CPU time. The peer has to be in
// the PID namespace of this process. A witness belongs to the goroutine of watchPeers.
type witness struct {
	pid    string // "": not looked for yet; "-": unknown, or no other process of this host
	start  string // of the process: a PID is used again
	cpu    uint64
	looked bool // start and cpu are of the last look
}

// ran reports whether the process of c has used CPU time since the last look. The first one after
// forget returns false.
func (w *witness) ran(c *conn) bool {
	if w.pid == "" {
		w.pid = pidOnThisHost(c)
	}
	start, cpu, ok := cpuTime(w.pid)
	advanced := ok && w.looked && start == w.start && cpu > w.cpu
	w.start, w.cpu, w.looked = start, cpu, ok
	return advanced
}

func (w *witness) forget() { w.looked = false }

// processRuns reports whether the process of c, which has been silent for half of timeout, uses CPU
// time.
func (c *conn) processRuns(timeout time.Duration) bool {
	if c.liveness.silentFor() < timeout/2-checkInterval {
		c.witness.forget()
		return false
	}
	return c.witness.ran(c)
}

// pidOnThisHost returns the PID in the hello of c, or "-". A connection within a host has one address
// at both ends.
func pidOnThisHost(c *conn) string {
	var pid int
	host, err := os.Hostname()
	if _, bad := fmt.Sscanf(c.hello.Key, "pid %d on", &pid); bad != nil || err != nil || !c.sameHost || pid == os.Getpid() ||
		c.hello.Key != fmt.Sprintf("pid %d on %s", pid, host) {
		return "-"
	}
	return strconv.Itoa(pid)
}

// isSameHost reports whether both ends of a TCP connection have the same address.
func isSameHost(nc net.Conn) bool {
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	remote, too := nc.RemoteAddr().(*net.TCPAddr)
	return ok && too && local.IP.Equal(remote.IP)
}

// cpuTime returns when a process was started, and how much CPU time it has used, in clock ticks.
func cpuTime(pid string) (start string, ticks uint64, ok bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", 0, false
	}
	// "pid (name) state …", with utime, stime and starttime as fields 14, 15 and 22: proc_pid_stat(5).
	// The name may contain anything.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return "", 0, false
	}
	user, err := strconv.ParseUint(string(f[11]), 10, 64)
	system, err2 := strconv.ParseUint(string(f[12]), 10, 64)
	return string(f[19]), user + system, err == nil && err2 == nil
}
