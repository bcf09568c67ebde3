package main_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
)

// elastic is a job of torchrun with the rendezvous backend "muster": agents, each of which is a
// host, and their workers, testdata/elastic.py.
type elastic struct {
	exe  string
	env  []string
	stop string // the file that ends the workers
	wait string // what the workers do meanwhile: gloo, store, compute
	args []string
}

// newElastic returns a job that meets at endpoint.
func newElastic(t *testing.T, endpoint, id string, args ...string) *elastic {
	t.Helper()
	dir := t.TempDir()
	e := &elastic{exe: testcluster.Torch(t), stop: filepath.Join(dir, "stop"), wait: "gloo"}
	msgpack, err := exec.Command(testcluster.Python(t, "msgpack"), "-c", "import msgpack, os; print(os.path.dirname(os.path.dirname(msgpack.__file__)))").Output()
	require.NoError(t, err)
	here, err := filepath.Abs("../../clients/python")
	require.NoError(t, err)
	info := filepath.Join(dir, "muster_pg-0.dist-info") // as if it were installed
	require.NoError(t, os.Mkdir(info, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(info, "METADATA"), []byte("Metadata-Version: 2.1\nName: muster-pg\nVersion: 0\n"), 0o644))
	project, err := os.ReadFile(filepath.Join(here, "pyproject.toml"))
	require.NoError(t, err)
	entry := regexp.MustCompile(`(?m)^\[project.entry-points."torchrun.handlers"\]\nmuster = "(.+)"$`).FindSubmatch(project)
	require.NotNil(t, entry, "the entry point of pyproject.toml")
	require.NoError(t, os.WriteFile(filepath.Join(info, "entry_points.txt"), fmt.Appendf(nil, "[torchrun.handlers]\nmuster = %s\n", entry[1]), 0o644))
	e.env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1", "MUSTER_BINARY="+self(t), "TMPDIR="+dir, role+"="+roleMuster,
		"PYTHONPATH="+strings.Join([]string{here, dir, strings.TrimSpace(string(msgpack))}, ":"))
	e.args = slices.Concat([]string{
		"-m", "torch.distributed.run", "--rdzv-backend=muster", "--rdzv-endpoint=" + endpoint, "--rdzv-id=" + id, "--local-addr=127.0.0.1",
	}, args, []string{"testdata/elastic.py", e.stop})
	return e
}

// end has the workers end.
func (e *elastic) end(t *testing.T) {
	t.Helper()
	require.NoError(t, os.WriteFile(e.stop, nil, 0o644))
}

// agent is a running agent.
type agent struct {
	cmd   *exec.Cmd
	lines chan string // of standard output
	ended chan error

	mu   sync.Mutex // protects text
	text []byte     // standard error, and what was read of standard output
}

func (a *agent) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text = append(a.text, b...)
	return len(b), nil
}

func (a *agent) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return string(a.text)
}

// agent starts an agent. It and what it leaves end with the test.
func (e *elastic) agent(t *testing.T) *agent {
	t.Helper()
	a := &agent{cmd: exec.Command(e.exe, append(slices.Clip(e.args), e.wait)...), lines: make(chan string, 1000), ended: make(chan error, 1)}
	a.cmd.Env, a.cmd.Stderr = e.env, a
	a.cmd.WaitDelay = time.Second
	out, err := a.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, a.cmd.Start())
	go func() {
		defer close(a.lines)
		all := bufio.NewScanner(io.TeeReader(out, a))
		for all.Scan() {
			a.lines <- all.Text()
		}
		a.ended <- a.cmd.Wait()
	}()
	t.Cleanup(func() { a.kill(t) })
	return a
}

// processes returns the agent's processes that run: itself, its workers, which are all that have it
// as an ancestor, and its relay, 0 if there is none.
func (a *agent) processes(t *testing.T) (agent int, workers []int, relay int) {
	t.Helper()
	all := []int{a.cmd.Process.Pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, task := range tasks {
			b, _ := os.ReadFile(task)
			for s := range strings.FieldsSeq(string(b)) {
				pid, err := strconv.Atoi(s)
				require.NoError(t, err)
				all = append(all, pid)
			}
		}
	}
	for _, pid := range all[1:] {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("\x00relay\x00")) {
			relay = pid
		} else {
			workers = append(workers, pid)
		}
	}
	return all[0], workers, relay
}

// kill kills the agent and its workers. Its relay ends by itself.
func (a *agent) kill(t *testing.T) {
	t.Helper()
	agent, workers, _ := a.processes(t)
	killAll(append(workers, agent)...)
}

func killAll(pids ...int) {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// says waits for n lines that begin with text, and returns them.
func (a *agent) says(t *testing.T, n int, text string) (found []string) {
	t.Helper()
	late := time.After(4 * limit)
	for len(found) < n {
		select {
		case line, ok := <-a.lines:
			if !ok {
				t.Fatalf("it ended, and has not said %q %d times:\n%s", text, n, a)
			}
			if strings.HasPrefix(line, text) {
				found = append(found, line)
			}
		case <-late:
			t.Fatalf("it has not said %q %d times:\n%s", text, n, a)
		}
	}
	return found
}

// succeeds waits until all workers of the agent are done, and for its end.
func (a *agent) succeeds(t *testing.T, workers, size int) {
	t.Helper()
	for _, line := range a.says(t, workers, "done ") {
		assert.Contains(t, line, fmt.Sprintf(" of %d", size))
	}
	for range a.lines {
	}
	require.NoError(t, <-a.ended, "%s", a)
}

// onlyState checks that the store has nothing but the state of the job, which is closed.
func onlyState(t *testing.T, url, id string) {
	t.Helper()
	// The store deletes what it says of the workers' processes after their connections have ended.
	testcluster.Eventually(t, limit, func() bool {
		r := run(t, "keys", "--store", url)
		return r.code == 0 && r.stdout == "torchrun/"+id+"/state\n"
	}, "only the state is left")
	assert.Contains(t, run(t, "get", "--store", url, "torchrun/"+id+"/state").stdout, `"closed": true`)
}

// TestTorchrunMuster runs two agents with a worker each, in the long form two. The store, which is
// durable and requires TLS and a secret, is killed and restarted after the time in which an agent
// without heartbeats fails. No worker notices.
func TestTorchrunMuster(t *testing.T) {
	d := newDesk(t)
	args := append(d.serverFlags(), "--data", t.TempDir(), "--secret-file", d.path("secret"))
	server, url := serve(t, args...)
	workers := 1
	if testcluster.Soak() {
		workers = 2
	}
	job := newElastic(t, url, "a job", "--nnodes=2", fmt.Sprint("--nproc-per-node=", workers), "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3")
	job.env = append(job.env, "MUSTER_SECRET_FILE="+d.path("secret"), "MUSTER_TLS_CA="+d.path("tls/ca.pem"))
	first, second := job.agent(t), job.agent(t)
	for _, a := range []*agent{first, second} {
		a.says(t, workers, "formed ")
	}
	server.signal(t, syscall.SIGKILL)
	server.wait(t)
	<-time.After(5 * time.Second) // longer than an agent may be silent
	start(t, append([]string{"serve", "--listen", strings.TrimPrefix(url, "muster://")}, args...)...).line(t, url)
	job.end(t)
	first.succeeds(t, workers, 2*workers)
	second.succeeds(t, workers, 2*workers)
	assert.Equal(t, 2*workers, strings.Count(first.String()+second.String(), "formed "), "no worker was started again")
	onlyState(t, url+"?ca="+d.path("tls/ca.pem")+"&secret-file="+d.path("secret"), "a%20job")
}

// TestTorchrunReplaced checks the agents of a job without workers: one that replaces another one has
// the TCPStore of the new generation, whichever its rank is.
func TestTorchrunReplaced(t *testing.T) {
	_, url := serve(t)
	job := newElastic(t, url, "")
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, job.exe, "testdata/handlers.py", url)
	cmd.Env = job.env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	onlyState(t, url, "job")
}

// TestTorchrunFewer kills one of two agents of a job that needs one, while the workers wait in the
// store. The agent's relay and workers end, those of the other agent form alone, and find no key of
// the generation before. In the long form three such jobs run at a time in one store.
func TestTorchrunFewer(t *testing.T) {
	_, url := serve(t)
	var want strings.Builder
	var jobs []*elastic
	for i := range testcluster.Form(1, 3) {
		jobs = append(jobs, newElastic(t, url, fmt.Sprint("job-", i), "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9", "--monitor-interval=0.1",
			"--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=2"))
		jobs[i].wait = "store"
		fmt.Fprintf(&want, "torchrun/job-%d/state\n", i)
	}
	t.Run("jobs", func(t *testing.T) {
		for i, job := range jobs {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				agents := []*agent{job.agent(t), job.agent(t)}
				for _, a := range agents { // one of them may have formed alone before
					for !strings.Contains(a.says(t, 1, "formed ")[0], " of 2 ") {
						continue
					}
				}
				agent, workers, relay := agents[0].processes(t)
				require.NotZero(t, relay)
				t.Cleanup(func() { killAll(workers...) })
				killed := time.Now()
				killAll(agent)
				agents[1].says(t, 1, "formed 0 of 1 ")
				t.Log("formed again after", time.Since(killed))
				for _, pid := range append(workers, relay) {
					testcluster.Eventually(t, limit, func() bool { return !testcluster.Alive(pid) }, "the relay and the workers end with their agent")
				}
				job.end(t)
				agents[1].succeeds(t, 1, 1)
			})
		}
	})
	run(t, "keys", "--store", url).wants(t, 0, want.String(), "")
}

// TestTorchrunKills kills an agent, its workers, its relay, or all of them, whatever the workers do,
// and starts another agent where one has ended: MUSTER_TORCHRUN_KILLS is the number of kills of each
// job.
func TestTorchrunKills(t *testing.T) {
	testcluster.SoakOnly(t, "TestTorchrunFewer has a kill")
	kills, err := strconv.Atoi(cmp.Or(os.Getenv("MUSTER_TORCHRUN_KILLS"), "2"))
	require.NoError(t, err)
	for _, wait := range []string{"compute", "gloo", "store"} {
		for _, what := range []string{"agent", "workers", "relay", "all"} {
			t.Run(what+"/"+wait, func(t *testing.T) {
				_, url := serve(t)
				job := newElastic(t, url, "job", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=1000", "--monitor-interval=0.1",
					"--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=5")
				job.wait = wait
				agents := []*agent{job.agent(t), job.agent(t)}
				formed := func() {
					for _, a := range agents {
						a.says(t, 2, "formed ")
					}
				}
				formed()
				for round := range kills {
					i := (round/2 + 1) % 2 // once the first agent of the generation, once the other one
					agent, workers, relay := agents[i].processes(t)
					require.NotZero(t, relay)
					t.Cleanup(func() { killAll(workers...) })
					pids := map[string][]int{"agent": {agent}, "workers": workers, "relay": {relay}, "all": append([]int{agent, relay}, workers...)}
					_, others, _ := agents[1-i].processes(t)
					killed := time.Now()
					killAll(pids[what]...)
					for _, pid := range others {
						testcluster.Eventually(t, limit, func() bool { return !testcluster.Alive(pid) }, "the workers of the other agent end")
					}
					t.Log("the other workers have ended after", time.Since(killed))
					if what == "agent" || what == "all" {
						agents[i] = job.agent(t)
					}
					formed()
					t.Log("formed again after", time.Since(killed))
				}
				job.end(t)
				for _, a := range agents {
					a.succeeds(t, 2, 4)
				}
				onlyState(t, url, "job")
			})
		}
	}
}

// TestTorchrunOfUnits trains with two workers of two processes, each started by a torchrun of its own, with our
// rendezvous or torch's. When a process is killed, its torchrun starts its worker again, and the other goes on.
func TestTorchrunOfUnits(t *testing.T) {
	_, url := serve(t)
	addr := strings.TrimPrefix(url, "muster://")
	job := newElastic(t, url, "first", "--nproc-per-node=2", "--max-restarts=3")
	job.env = append(job.env, "MUSTER_STORE="+url, "MUSTER_JOB=units", "MUSTER_ELASTIC=1:2")
	program := []string{"../../clients/python/tests/torch_elastic.py", addr}
	job.wait = "torchrun"
	job.args = append(job.args[:len(job.args)-2], program...)
	alone := *job
	alone.args = append([]string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"}, program...)
	agents := []*agent{job.agent(t), alone.agent(t)}

	s := testcluster.Dial(t, addr, nil)
	var generation uint64
	formed := func() {
		t.Helper()
		testcluster.Eventually(t, 4*limit, func() bool {
			status, err := membership.ReadStatus(t.Context(), s, "units")
			if err != nil || status.Workers-status.Gone < 2 || status.Generation <= generation {
				return false
			}
			generation = status.Generation
			return true
		}, "a view of both workers")
	}
	formed()
	for _, a := range agents {
		_, workers, _ := a.processes(t)
		killAll(workers[0])
		formed()
	}
	at, err := s.Wait(t.Context(), "at")
	require.NoError(t, err)
	step, err := strconv.Atoi(string(at[0]))
	require.NoError(t, err)
	require.NoError(t, s.Set(t.Context(), "goal", []byte(strconv.Itoa(step+200)), nil))
	for _, a := range agents {
		a.says(t, 2, "done torchrun-")
		for range a.lines {
		}
		require.NoError(t, <-a.ended, "%s", a)
	}
}
