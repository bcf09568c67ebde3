// Package procfs reads what Linux says of processes: proc_pid_stat(5). Elsewhere it finds none.
package procfs

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"strconv"
)

// TicksPerSecond is the unit of Stat.Ticks, the same on all architectures.
const TicksPerSecond = 100

// Stat is the state of a process, or of a thread.
type Stat struct {
	State         byte // R runs, S and D wait, T and t are stopped, Z and X have ended
	Parent, Group int
	Ticks         uint64 // CPU time that it has used
	Start         string // when it was started: a later process with its number has another one
}

// Process returns the state of a process; ok is false if there is none.
func Process(pid int) (s Stat, ok bool) { return Read(fmt.Sprintf("/proc/%d/stat", pid)) }

// Read returns what a file "stat" below /proc says.
func Read(file string) (s Stat, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Stat{}, false
	}
	// "pid (name) state parent group …": the name may have any characters, ')' too.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return Stat{}, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	group, err2 := strconv.Atoi(string(f[2]))
	user, err3 := strconv.ParseUint(string(f[11]), 10, 64)
	system, err4 := strconv.ParseUint(string(f[12]), 10, 64)
	return Stat{f[0][0], parent, group, user + system, string(f[19])}, cmp.Or(err, err2, err3, err4) == nil
}

// Ended reports whether the process is a zombie. Where process 1 does not reap, as in many containers,
// orphans stay zombies.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Stopped reports whether a signal, or a debugger, has stopped it.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }
