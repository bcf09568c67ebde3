package main_test

import (
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// TestRunElasticRemovesWorkers checks that the others need not wait until the session of a worker that was
// killed ends in a store that runs elsewhere.
func TestRunElasticRemovesWorkers(t *testing.T) {
	t.Parallel()
	_, url := serve(t, "--reconnect-timeout", "1h")
	p := start(t, "run", "--elastic", "1:2", "--no-prefix", "--env", role+"="+roleWorker, "--store", url, "--", self(t))
	view := func(text string) []string { return strings.Fields(p.line(t, text)) }
	line := view("view")
	for line[2] != "2" {
		line = view("view")
	}
	pid, err := strconv.Atoi(line[4])
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	after, err := strconv.Atoi(line[1])
	require.NoError(t, err)
	for {
		generation, err := strconv.Atoi(view("view")[1])
		require.NoError(t, err)
		if generation > after {
			break
		}
	}
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
