package python_test

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

// TestTorchElastic kills and stops workers of an elastic training of PyTorch, at random and at lines of the
// protocol: each worker that is left has the weights of one process that takes the same steps, bit by bit.
func TestTorchElastic(t *testing.T) {
	rounds := testcluster.Form(1, 30)
	faults := map[int][]string{1: {"kill=3", "first=2", "two=2", "stop=2", "join=1", "line=5"}, 2: {"kill=3", "two=1", "stop=2", "line=3"}}
	if rounds > 1 {
		many := []string{"kill=8", "first=4", "two=4", "stop=4", "join=2", "line=12"}
		faults = map[int][]string{1: many, 2: many}
	}
	for processes, faults := range faults {
		for seed := range rounds {
			t.Run(fmt.Sprintf("workers of %d, seed %d", processes, seed), func(t *testing.T) {
				torchFaults(t, seed, processes, faults...)
			})
		}
		if testcluster.Soak() {
			t.Run(fmt.Sprintf("50 views of workers of %d", processes), func(t *testing.T) {
				out := torchFaults(t, 0, processes, "last=50")
				require.GreaterOrEqual(t, strings.Count(out, "constant ("), 2*processes, out)
			})
		}
	}
}

// torchFaults has faults happen to a training, and returns what its processes have said.
func torchFaults(t *testing.T, seed, processes int, faults ...string) string {
	t.Helper()
	limits := store.ServerLimits{ReconnectTimeout: 200 * time.Millisecond} // all is on loopback
	addr := testcluster.Serve(t, &store.Server{Limits: limits})
	out := torchScript(t, append([]string{"tests/torch_elastic.py", addr, fmt.Sprint(seed), fmt.Sprint(processes)}, faults...)...)
	require.Contains(t, out, "ok ")
	require.GreaterOrEqual(t, strings.Count(out, "done w"), 2*processes, out) // of four workers, the last fault may kill two
	return out
}

// restartable serves a durable store behind a proxy, and returns what restarts it, after a call of between.
func restartable(t *testing.T) (front *testcluster.Proxy, restart func(between func())) {
	t.Helper()
	dir := t.TempDir()
	var stop func()
	serve := func() string {
		l := testcluster.Listen(t)
		stop = testcluster.ServeAt(t, &store.Server{Engine: &store.Memory{Dir: dir, ReconnectTimeout: time.Minute}}, l)
		return l.Addr().String()
	}
	front = testcluster.NewProxy(t, serve())
	return front, func(between func()) {
		front.Refuse(true) // the port of the store may be that of another one meanwhile
		stop()
		between()
		front.Target(serve())
		front.Refuse(false)
	}
}

// TestTorchElasticWhoseStoreRestarts restarts the durable store of a training: it goes on in the same view.
// While the store is away for longer than the leases, all workers are evicted; then they join again, with the
// state that they have.
func TestTorchElasticWhoseStoreRestarts(t *testing.T) {
	python := testcluster.Torch(t, "numpy")
	for processes := 1; processes <= 2; processes++ {
		t.Run(fmt.Sprintf("workers of %d", processes), func(t *testing.T) {
			front, restart := restartable(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, python, "tests/torch_elastic.py", front.Addr(), "0", fmt.Sprint(processes), "wait=1")
			cmd.Env = append(torchEnvironment(t), "TTL=10") // no worker is evicted because the host is busy
			var out testcluster.Log
			cmd.Stdout, cmd.Stderr = &out, &out
			require.NoError(t, cmd.Start())

			s := testcluster.Dial(t, front.Addr(), nil)
			_, err := s.Wait(ctx, "waits") // nothing connects any more
			require.NoError(t, err, "%s", &out)
			at := int64(0)
			goesOn := func() uint64 {
				for e, err := range s.Watch(ctx, "at", 0) {
					require.NoError(t, err, "%s", &out)
					step, err := strconv.ParseInt(string(e.Value), 10, 64)
					require.NoError(t, err)
					require.GreaterOrEqual(t, step, at-10, "a worker has begun anew")
					if step > at+20 {
						at = step
						break
					}
				}
				status, err := membership.ReadStatus(ctx, s, "job0")
				require.NoError(t, err)
				require.Zero(t, status.Gone)
				if status.Workers < 3 { // not all have come
					return 0
				}
				return status.Generation
			}
			views := map[uint64]bool{}
			for range 4 { // restarts, each after the training has gone on
				if view := goesOn(); view > 0 {
					views[view] = true
				}
				restart(func() {})
			}
			require.Len(t, views, 1)
			restart(func() {
				assert.Eventually(t, func() bool { return strings.Count(out.String(), ": it joins again") >= 3 }, time.Minute, 10*time.Millisecond, "%s", &out)
			})
			for goesOn() == 0 {
			}
			require.NoError(t, s.Set(ctx, "go on", nil, nil))
			require.NoError(t, cmd.Wait(), "%s", &out)
			require.Contains(t, out.String(), "ok ")
		})
	}
}

// TestTorchElasticExample runs examples/pytorch with workers that kill themselves, and are replaced: those that
// end have the same weights.
func TestTorchElasticExample(t *testing.T) {
	python := testcluster.Torch(t, "numpy")
	for name, run := range map[string]struct{ options, program []string }{
		"DDP":  {[]string{"--elastic", "2:3"}, []string{"--steps", "300", "--life", "6"}},
		"HSDP": {[]string{"--elastic", "1:2", "--unit-size", "2"}, []string{"--steps", "300", "--life", "16"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			args := append(append([]string{"run", "--max-restarts", "99"}, run.options...), "--", python, "../../examples/pytorch/train.py", "../../README.md")
			cmd := exec.CommandContext(ctx, testcluster.Command(t), append(args, run.program...)...)
			cmd.Env = torchEnvironment(t)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			weights := regexp.MustCompile(`300 steps, weights (\w+)`).FindAllSubmatch(out, -1)
			require.GreaterOrEqual(t, len(weights), 2, "%s", out)
			for _, w := range weights {
				require.Equal(t, string(weights[0][1]), string(w[1]), "%s", out)
			}
		})
	}
}

// TestTorchElasticMonitor has workers of an elastic training hang, with the interpreter's lock, stopped, and
// excluded: their monitors kill them, and the others go on. One that wakes up in time lives, and no monitor
// outlives its worker, nor a worker that forks of it outlive.
func TestTorchElasticMonitor(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{})
	out := torchScript(t, "tests/torch_elastic_monitor.py", addr)
	for _, name := range []string{"lock", "stop", "stuck", "forked"} {
		require.Regexp(t, fmt.Sprintf("(?m)^%s 1 -9 $", name), out)
		require.Len(t, regexp.MustCompile(fmt.Sprintf("(?m)^%s [02] 0 done with 2", name)).FindAllString(out, -1), 2, "%s\n%s", name, out)
	}
	require.Len(t, regexp.MustCompile("(?m)^paused [012] 0 done with 3").FindAllString(out, -1), 3, out)
	require.Len(t, regexp.MustCompile("forked [012]: 0 monitors").FindAllString(out, -1), 3, out)
	says := `elastic job "%s": worker "w1" \(pid \d+\) %s for 3s: killing it, so that it can be replaced`
	for name, why := range map[string]string{
		"lock": "has not run", "stop": "has not run", "stuck": "is excluded, and has not come back from the program's code",
	} {
		require.Regexp(t, fmt.Sprintf(says, name, why), out)
	}
	require.Equal(t, 3, strings.Count(out, ": killing it"), out)
	require.Contains(t, out, "this worker is excluded, and is about to be killed:\nthread MainThread:")
}
