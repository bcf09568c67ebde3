package tcpstore

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/procfs"
	"github.com/muster-pg/muster/internal/tcpwire"
)

// inodesOf returns the inodes of the clients' sockets of connections within this host. It reads the
// kernel's tables once for all of them.
func inodesOf(peers []*peer) map[ports]uint64 {
	wanted := map[ports]bool{}
	for _, p := range peers {
		if at := portsOf(p); at != (ports{}) {
			wanted[at] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	inodes := map[ports]uint64{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			col := strings.Fields(lines.Text())
			if len(col) < 10 {
				continue
			}
			at := ports{portIn(col[1]), portIn(col[2])}
			inode, err := strconv.ParseUint(col[9], 10, 64)
			if wanted[at] && err == nil && inode > 0 {
				inodes[at] = inode
			}
		}
		_ = f.Close()
	}
	return inodes
}

// portIn returns the port of an address in a table of the kernel.
func portIn(addr string) int {
	_, hex, _ := strings.Cut(addr, ":")
	n, _ := strconv.ParseUint(hex, 16, 16)
	return int(n)
}

// owns reports whether a process has the socket of inode open. A client of another PID namespace
// says a number that here is another process, or none.
func owns(pid int, inode uint64) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	socket := fmt.Sprintf("socket:[%d]", inode)
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		to, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		return to == socket
	})
}

// describe adds what this host knows of the process: its command, and its rank if it was started
// with one.
func (x *process) describe(pid int) {
	host, _ := os.Hostname()
	x.start = startOf(pid)
	x.pid, x.ID, x.Label = pid, fmt.Sprintf("%s/%d", host, pid), fmt.Sprintf("pid %d on %s", pid, host)
	if script := scriptOf(pid); script != "" {
		x.Label += ", " + script
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil { // of another user
		return
	}
	number := func(s []byte, lowest int) int {
		n, err := strconv.Atoi(string(s))
		if err != nil || n < lowest || n >= mostRanks {
			return lowest - 1
		}
		return n
	}
	rank, size := -1, 0
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, _ := bytes.Cut(v, []byte{'='})
		switch string(name) {
		case "RANK":
			rank = number(value, 0)
		case "WORLD_SIZE":
			size = number(value, 1)
		case "TORCHELASTIC_RUN_ID":
			x.run = string(value[:min(len(value), mostText)])
		}
	}
	if rank < size {
		x.Rank, x.Size = rank, size
	}
}

// scriptOf returns the name of the program that a process runs, or of the script that it has as its
// first argument. Other arguments may be confidential.
func scriptOf(pid int) string {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	args := strings.Split(string(line), "\x00")
	name := filepath.Base(args[0])
	if strings.HasPrefix(name, "python") {
		for i := 1; i < len(args) && i < 4; i++ {
			switch a := args[i]; {
			case a == "-m" && i+1 < len(args):
				return clip(args[i+1])
			case a == "-c":
				return clip(name)
			case a != "" && a[0] != '-':
				return clip(filepath.Base(a))
			}
		}
	}
	return clip(name)
}

// clip bounds a text that another process has chosen.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 64)], "?") }

// usage is the processor time that a process had used when it was last looked at.
type usage struct {
	ticks uint64
	at    time.Time
}

// startOf returns when a process was started, in units of the kernel; "" if it does not run: a zombie
// has ended.
func startOf(pid int) string {
	s, ok := procfs.Process(pid)
	if !ok || s.Ended() {
		return ""
	}
	return s.Start
}

// state returns the state of a process of this host, or "" if it is unknown.
func (u *usage) state(pid int, now time.Time) string {
	if pid == 0 {
		return ""
	}
	s, ok := procfs.Process(pid)
	if !ok {
		return ""
	}
	before := *u
	*u = usage{s.Ticks, now}
	switch {
	case s.Stopped():
		return tcpwire.Stopped
	case before.at.IsZero():
		return ""
	case float64(u.ticks-before.ticks) >= now.Sub(before.at).Seconds()*procfs.TicksPerSecond/2,
		s.State == 'R' && u.ticks-before.ticks > 1: // it would use more of a processor, but others do
		return tcpwire.Computing
	}
	return tcpwire.Sleeping
}
