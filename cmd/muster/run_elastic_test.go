package main_test

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// asUnit is a process of a unit: process 0 takes part in views until its registration is removed. None ends
// unless it is killed.
func asUnit() int {
	signal.Ignore(syscall.SIGTERM)
	rank := os.Getenv("MUSTER_UNIT_RANK")
	fmt.Println("unit", os.Getenv("MUSTER_WORKER")+"/"+rank, os.Getpid())
	if rank == "0" {
		_ = os.Unsetenv("MUSTER_UNIT_SIZE") // this process alone is a worker of package dataparallel
		_ = asWorker()
	}
	<-time.After(time.Hour)
	return 1
}

// TestRunElasticRemovesUnits kills a process of a unit whose other process, which has joined the job, does not
// end: the other unit waits neither for that, nor until a session ends in a store that runs elsewhere, and a
// line of stderr tells of the change. When the unit has ended, it starts again.
func TestRunElasticRemovesUnits(t *testing.T) {
	t.Parallel()
	_, url := serve(t, "--reconnect-timeout", "1h")
	p := start(t, "run", "--elastic", "1:2", "--unit-size", "2", "--max-restarts", "1", "--kill-after", "1h",
		"--no-prefix", "--env", role+"="+roleUnit, "--store", url, "--", self(t))
	pids := map[string]int{}  // by worker and process
	generation, size := 0, "" // of the newest view
	until := func(done func() bool) {
		for !done() {
			f := strings.Fields(p.line(t, "\n"))
			number, err := strconv.Atoi(f[len(f)-1])
			if f[0] == "view" {
				number, err = strconv.Atoi(f[1])
			}
			require.NoError(t, err)
			switch {
			case f[0] == "unit":
				pids[f[1]] = number
			case number > generation:
				generation, size = number, f[2]
			}
		}
	}
	until(func() bool { return len(pids) == 4 && size == "2" })
	var first, other int
	for name, pid := range pids {
		switch {
		case strings.HasSuffix(name, "-1/0"):
			other = pid
		case strings.HasSuffix(name, "-1/1"):
			first = pid
		}
	}
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	p.complaint(t, ": lost ") // of the next view
	until(func() bool { return size == "1" })
	require.True(t, testcluster.Alive(other))
	require.NoError(t, syscall.Kill(other, syscall.SIGKILL))
	until(func() bool { return size == "2" })
}

// TestRunElasticLease has a durable store that is away for longer than the lease of one job, and not for that
// of another: the workers of the one are ended and start again, those of the other go on.
func TestRunElasticLease(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server, url := serve(t, "--data", dir, "--reconnect-timeout", "1m") // the host is busy
	job := func(lease string) *process {
		return start(t, "run", "--nnodes", "1:2", "--settle", "0s", "-n", "2", "--elastic", "2", "--lease", lease, "--job", "job of "+lease,
			"--no-prefix", "--env", role+"="+roleWorker, "--store", url, "--", self(t))
	}
	short, long := job("1s"), job("1h")
	view := func(p *process) (pids []string) {
		for generation := ""; len(pids) < 2; {
			f := strings.Fields(p.line(t, "view"))
			if f[1] != generation {
				pids = nil
			}
			if generation = f[1]; f[2] == "2" {
				pids = append(pids, f[4])
			}
		}
		slices.Sort(pids)
		return pids
	}
	before, same := view(short), view(long)
	server.signal(t, syscall.SIGKILL)
	_ = server.wait(t)
	short.complaint(t, "muster: this node was out of contact with the store and is out of the job: it joins again")
	_, _ = serve(t, "--data", dir, "--reconnect-timeout", "1m", "--listen", strings.TrimPrefix(url, "muster://"))
	require.NotEqual(t, before, view(short))
	pid, err := strconv.Atoi(same[0])
	require.NoError(t, err)
	require.True(t, testcluster.Alive(pid), "the worker lives")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	long.complaint(t, "1 of at least 2 workers are left")
}
