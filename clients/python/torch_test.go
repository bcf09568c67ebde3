package python_test

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// TestTorchGroup runs a process group of PyTorch on the backend of muster_pg.torch, whose store is
// also its TCPStore: the verbs, mismatches, a rank that is missing and one that is killed.
func TestTorchGroup(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	out := torchScript(t, "tests/torch_group.py", addr)
	for part, ranks := range map[string]int{"tensors": 4, "arrays": 4, "objects": 4, "concurrent": 4, "mismatches": 4, "failures": 3} {
		require.Equal(t, ranks, strings.Count(out, "ok "+part), "%s\n%s", part, out)
	}
}

// TestTorchTraining checks what the ranks of DDP and FSDP2 report when rank 1 fails: each names it, and
// ends by itself.
func TestTorchTraining(t *testing.T) {
	failures := testcluster.Form([]string{"ddp-exit", "ddp-sparse", "fsdp-kill"}, []string{
		"ddp-exit", "ddp-kill", "ddp-mismatch", "ddp-timeout", "ddp-sparse", "fsdp-exit", "fsdp-kill", "fsdp-mismatch", "fsdp-timeout", "fsdp-sparse",
	})
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	_ = torchScript(t, append([]string{"tests/torch_train.py", addr}, failures...)...)
}

// TestTorchPhases has a rank of a gloo job hang in a phase, with the interpreter's lock or in gloo: the
// process that watches it cuts its connections, and the all_reduce of the others fails.
func TestTorchPhases(t *testing.T) {
	out := torchScript(t, "tests/torch_phases.py")
	for _, rank := range []string{"lock [02]", "host [12]", "waits [01]"} {
		require.Len(t, regexp.MustCompile("(?m)^"+rank+` failed after [2-7]s: .*Connection closed by peer`).FindAllString(out, -1), 2, "%s\n%s", rank, out)
	}
	for _, hung := range []int{0, 1} {
		require.Contains(t, out, fmt.Sprintf("muster: rank %d has made no progress for 2s: step\n", hung))
	}
}

// TestTorchRendezvous checks the errors of torchrun's rendezvous backend, and its state in the store.
// TestTorchrunMuster (cmd/muster) runs torchrun.
func TestTorchRendezvous(t *testing.T) {
	safe := testcluster.Serve(t, &store.Server{Access: []store.Access{{Secret: []byte("0123456789abcdef"), Write: true}}})
	out := torchScript(t, "tests/torch_rendezvous.py", testcluster.Serve(t, &store.Server{}), safe)
	require.Contains(t, out, "ok errors\nok state\n")
}

// TestTorchElasticCases checks what the workers of an elastic training report: errors of the program,
// workers that hang or do not fit, and states that are taken back. tests/torch_elastic_reports.py has that.
func TestTorchElasticCases(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{})
	cases := testcluster.Form([]string{"value", "dirty", "shape", "late", "unregistered", "scaler", "position", "source", "unknown", "cleared", "other-torch"}, nil) // nil: all
	_ = torchScript(t, append([]string{"tests/torch_elastic_cases.py", addr}, cases...)...)
}

// TestTorchElasticUnits checks workers of two processes over which a model is sharded.
func TestTorchElasticUnits(t *testing.T) {
	t.Setenv("MUSTER_BINARY", testcluster.Command(t))
	_ = torchScript(t, "tests/torch_elastic_cases.py", testcluster.Serve(t, &store.Server{}), "--units")
}

// TestTorchExport exports DTensors of a mesh of four ranks, of which one is killed in the end.
func TestTorchExport(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	out := torchScript(t, "tests/torch_export.py", addr, t.TempDir())
	require.Equal(t, 4, strings.Count(out, "ok exports"), "%s", out)
	require.Equal(t, 3, strings.Count(out, "ok killed"), "%s", out)
}

// TestTorchCheckpointExample has 4 ranks save a model that is sharded with FSDP2, joins it, and has 3 ranks
// read it. Then 4 export it, and the safetensors package alone reads that. All have the same weights.
func TestTorchCheckpointExample(t *testing.T) {
	python, command, dir := testcluster.Torch(t, "numpy"), testcluster.Command(t), t.TempDir()
	run := func(args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = torchEnvironment(t)
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), "terminate called without an active exception") { // of a thread of gloo, when a rank has ended
			require.NoError(t, err, "%s", out)
		}
		return regexp.MustCompile(`weights \w+`).FindString(string(out))
	}
	example := func(ranks, do, path string) string {
		return run(command, "run", "-n", ranks, "--", python, "../../examples/pytorch/checkpoint.py", do, path)
	}
	weights := example("4", "save", dir+"/shards")
	require.NotEmpty(t, weights)
	run(command, "gather", "-o", dir+"/model/", "--shard-size", "4GiB", dir+"/shards")
	require.Equal(t, weights, example("3", "load", dir+"/model"))
	require.Equal(t, weights, example("4", "export", dir+"/exported"))
	require.Equal(t, weights, run(python, "../../examples/pytorch/checkpoint.py", "whole", dir+"/exported"))
}

// torchScript runs a script with PyTorch until it exits, and fails the test if it does.
func torchScript(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testcluster.Torch(t, "numpy"), args...)
	cmd.Env = torchEnvironment(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// torchEnvironment returns the environment of a Python with PyTorch, which has no msgpack of its own.
func torchEnvironment(t *testing.T) []string {
	t.Helper()
	env := environment(t, "OMP_NUM_THREADS=1")
	for i, v := range env {
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			msgpack := script(t, nil, "-c", "import msgpack, os; print(os.path.dirname(os.path.dirname(msgpack.__file__)))")
			env[i] = "PYTHONPATH=" + path + ":" + strings.TrimSpace(msgpack)
		}
	}
	return env
}
