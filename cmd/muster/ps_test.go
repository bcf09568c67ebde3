package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// psJob is what the tests read of the output of "muster ps --json".
type psJob struct {
	Job, State             string
	Nodes, Ranks, Restarts int
	Failure                *struct {
		Process, Node, Reason string
		Time                  time.Time
	} `json:"last_failure"`
	On []struct {
		Node  string
		PID   int
		Ranks int
	}
}

// psUntil calls "muster ps --json" until ok returns true for its output.
func psUntil(t *testing.T, env []string, ok func([]psJob) bool, args ...string) (last []psJob) {
	t.Helper()
	testcluster.Eventually(t, limit, func() bool {
		r := runIn(t, env, append([]string{"ps", "--json"}, args...)...)
		require.Zero(t, r.code, "%+v", r)
		last = nil
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &last))
		return ok(last)
	}, "the jobs of ps")
	return last
}

// TestPsOfThisHost checks the jobs that this user runs here: one has restarted, one is elastic, and
// none is left when they have ended.
func TestPsOfThisHost(t *testing.T) {
	t.Parallel()
	env := []string{"XDG_RUNTIME_DIR=" + t.TempDir(), "MUSTER_STORE=", "MUSTER_HOST=nodeA"}
	runIn(t, env, "ps").wants(t, 0, "no job runs\n", "")
	runIn(t, env, "ps", "--json").wants(t, 0, "[]\n", "")
	one := startIn(t, nil, env, runSh(3, "--job train --max-restarts 1", `[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && exit 3; echo runs; exec sleep 60`)...)
	psUntil(t, env, func(jobs []psJob) bool { return len(jobs) == 1 })
	two := startIn(t, nil, env, append([]string{"run", "--elastic", "1:2"}, sh("exec sleep 60")...)...)
	jobs := psUntil(t, env, func(jobs []psJob) bool {
		return len(jobs) == 2 && jobs[0].Restarts == 1 && jobs[0].State == "running" && jobs[1].Ranks == 2
	})
	assert.Equal(t, []any{"train", 1, 3}, []any{jobs[0].Job, jobs[0].Nodes, jobs[0].Ranks})
	assert.Equal(t, []string{"rank 1", "nodeA:" + strconv.Itoa(one.cmd.Process.Pid), "exit status 3"}, []string{jobs[0].Failure.Process, jobs[0].Failure.Node, jobs[0].Failure.Reason})
	assert.WithinDuration(t, time.Now(), jobs[0].Failure.Time, limit)
	assert.Equal(t, one.cmd.Process.Pid, jobs[0].On[0].PID)
	assert.Equal(t, "sh-nodeA-"+strconv.Itoa(two.cmd.Process.Pid), jobs[1].Job)
	r := runIn(t, env, "ps")
	assert.Regexp(t, `^JOB +STATE +NODES +RANKS +RESTARTS +FOR +STORE
train +running +1 +3 +1 +[^ ]+ (m?s )? *muster://127\.0\.0\.1:\d+
  pid \d+ on nodeA:\d+: sh -c .*
  last failure: rank 1: exit status 3 on node nodeA:\d+, .* ago
sh-nodeA-\d+ +running +1 +2 +0 .*
  pid .*
$`, r.stdout)
	two.signal(t, syscall.SIGKILL)
	two.wait(t)
	runIn(t, env, "stop", "none").wants(t, 3, "", `no job "none" runs on this host; those that do: train`)
	runIn(t, env, "stop", "train").wants(t, 0, "SIGTERM to pid "+strconv.Itoa(one.cmd.Process.Pid)+": "+strings.Join(one.cmd.Args[len(one.cmd.Args)-3:], " ")+"\n", "")
	require.Equal(t, 143, one.wait(t).code)
	runIn(t, env, "ps").wants(t, 0, "no job runs\n", "")
}

// TestPsOfAStore checks the jobs on a store: one of two nodes and a spare node, and one of a single
// node, whose "muster run" is killed.
func TestPsOfAStore(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	done := filepath.Join(t.TempDir(), "done")
	var nodes []*process
	for range 3 {
		nodes = append(nodes, runNodes(t, url, 2, "--env DONE="+done, `while [ ! -e "$DONE" ]; do sleep 0.05; done`))
	}
	single := start(t, append([]string{"run", "-n", "1", "--job", "a/b", "--store", url}, sh("exec sleep 60")...)...)
	jobs := psUntil(t, nil, func(jobs []psJob) bool {
		return len(jobs) == 2 && len(jobs[0].On)+len(jobs[1].On) == 4 && jobs[0].State == "running" && jobs[1].State == "running"
	}, "--store", url)
	for _, j := range jobs {
		if j.Job == "train" {
			assert.Equal(t, []int{2, 4, 3}, []int{j.Nodes, j.Ranks, len(j.On)})
		} else {
			assert.Equal(t, []any{"a/b", 1, 1}, []any{j.Job, j.Nodes, j.Ranks})
		}
	}
	assert.Equal(t, 2, strings.Count(runIn(t, []string{"MUSTER_STORE=" + url}, "ps").stdout, "running"))
	single.signal(t, syscall.SIGKILL)
	psUntil(t, nil, func(jobs []psJob) bool { return len(jobs) == 1 }, "--store", url)
	require.NoError(t, os.WriteFile(done, nil, 0o644))
	for _, p := range nodes {
		p.signal(t, syscall.SIGTERM)
		p.wait(t)
	}
	psUntil(t, nil, func(jobs []psJob) bool { return len(jobs) == 0 }, "--store", url)
	run(t, "ps", "--store", "muster://127.0.0.1:1").wants(t, 5, "", "no store at 127.0.0.1:1")
}

// TestPsOfAHostedStore checks that other hosts see a job on the store that its "muster run" hosts.
func TestPsOfAHostedStore(t *testing.T) {
	t.Parallel()
	p := start(t, runSh(2, "--no-prefix --job train", "[ $RANK = 0 ] && echo $MUSTER_STORE; exec sleep 60")...)
	url := p.line(t, "muster://")
	jobs := psUntil(t, nil, func(jobs []psJob) bool { return len(jobs) == 1 && jobs[0].State == "running" }, "--store", url)
	assert.Equal(t, []any{"train", 2}, []any{jobs[0].Job, jobs[0].Ranks})
}
