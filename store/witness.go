package store

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/muster-pg/muster/internal/procfs"
)

// witness observes the process of a peer on this host, through procfs. A process that does not answer
// probes because a thread of it holds a lock, such as Python's GIL, runs all the same: it is late,
// and not failed. One that is stopped, or waits in the kernel, uses no CPU time. The peer has to be in
// the PID namespace of this process. A witness belongs to the goroutine of watchPeers.
type witness struct {
	pid    int // 0: not looked for yet; -1: unknown, or no other process of this host
	last   procfs.Stat
	looked bool // last is of the last look
}

// ran reports whether the process of c has used CPU time since the last look. The first one after
// forget returns false.
func (w *witness) ran(c *conn) bool {
	if w.pid == 0 {
		w.pid = pidOnThisHost(c)
	}
	now, ok := procfs.Process(w.pid)
	advanced := ok && w.looked && now.Start == w.last.Start && now.Ticks > w.last.Ticks
	w.last, w.looked = now, ok
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

// pidOnThisHost returns the PID in the hello of c, or -1. A connection within a host has one address
// at both ends.
func pidOnThisHost(c *conn) int {
	var pid int
	host, err := os.Hostname()
	if _, bad := fmt.Sscanf(c.hello.Key, "pid %d on", &pid); bad != nil || err != nil || !c.sameHost || pid == os.Getpid() ||
		c.hello.Key != fmt.Sprintf("pid %d on %s", pid, host) {
		return -1
	}
	return pid
}

// isSameHost reports whether both ends of a TCP connection have the same address.
func isSameHost(nc net.Conn) bool {
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	remote, too := nc.RemoteAddr().(*net.TCPAddr)
	return ok && too && local.IP.Equal(remote.IP)
}
