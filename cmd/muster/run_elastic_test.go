package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runElastic starts workers that are a shell script.
func runElastic(t *testing.T, flags, script string) *process {
	return start(t, append(append([]string{"run"}, strings.Fields(flags)...), sh(script)...)...)
}

// TestRunElasticRestarts checks that one worker starts again alone, with another ID and its log,
// that the job goes on when no restart is left, and ends when its workers do.
func TestRunElasticRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := runElastic(t, "--elastic 2:3 --max-restarts 1 --log-dir "+dir, `echo started $MUSTER_WORKER $$; [ $LOCAL_RANK = 1 ] && exit 3; while [ ! -e `+dir+`/done ]; do sleep 0.05; done`)
	p.complaint(t, "-1: exit status 3: restart 1 of at most 1")
	p.complaint(t, "-1.2: exit status 3: 2 workers go on")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "done"), nil, 0o644))
	r := p.wait(t)
	require.Zero(t, r.code, "%+v", r)
	lines := sorted(r.stdout)
	require.Len(t, lines, 4)
	assert.True(t, strings.HasPrefix(lines[2], "[1] started ") && strings.Contains(lines[2], "-1.2 ") || strings.HasPrefix(lines[1], "[1.2] started "), lines)
	logs, err := filepath.Glob(filepath.Join(dir, "*", "worker-*.log"))
	require.NoError(t, err)
	var names []string
	for _, l := range logs {
		names = append(names, filepath.Base(l))
	}
	require.Equal(t, []string{"worker-0.log", "worker-1.2.log", "worker-1.log", "worker-2.log"}, names)
}

// TestRunElasticFails checks the summary of a job that has failed, on both of its nodes.
func TestRunElasticFails(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	flags := "--nnodes 2 -n 2 --elastic 4 --max-restarts 1 --job train --store " + url
	a := runElastic(t, flags, `trap 'exit 9' TERM; echo ready; while :; do sleep 60 & wait $!; done`)
	b := runElastic(t, flags, `echo cause $MUSTER_WORKER; [ $LOCAL_RANK = 1 ] && kill -9 $$; exec sleep 60`)
	for _, p := range []*process{a, b} {
		r := p.wait(t)
		require.Equal(t, 137, r.code, "the code of the first worker that failed, on all nodes: %+v", r)
		require.Regexp(t, `(?m)^muster: worker [^ ]+-1: killed by signal 9 \(killed\) on node [^ ]+, after 1 restart: 3 of at least 4 workers are left; the last of 2 failures: worker [^ ]+-1\.2: killed by signal 9 \(killed\); the other workers were ended$`, r.stderr)
		require.Equal(t, p == b, strings.Contains(r.stderr, "muster: the last lines of worker "), r.stderr)
		node := map[bool]string{true: " on node [^ ]+"}[p == a]
		require.Regexp(t, `(?m)^muster: worker [^ ]+-1: killed by signal 9 \(killed\)`+node+`: restart 1 of at most 1$`, r.stderr)
	}
}

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
	require.False(t, gone(pid), "the worker lives")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	long.complaint(t, "1 of at least 2 workers are left")
}
