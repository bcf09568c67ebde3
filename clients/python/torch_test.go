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
	says := map[string]string{
		"exit": "0", "kill": "-9", "mismatch": "1 .*: ranks disagree: .*rank 1 called barrier",
		"timeout": "1 .*: timed out after .*: missing rank 1", "sparse": "1 .*: rank 1: invalid: a tensor is sparse_coo: pass t.to_dense()",
	}
	failures := testcluster.Form([]string{"ddp-exit", "ddp-sparse", "fsdp-kill"}, []string{
		"ddp-exit", "ddp-kill", "ddp-mismatch", "ddp-timeout", "ddp-sparse", "fsdp-exit", "fsdp-kill", "fsdp-mismatch", "fsdp-timeout", "fsdp-sparse",
	})
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	out := torchScript(t, append([]string{"tests/torch_train.py", addr}, failures...)...)
	for _, failure := range failures {
		says := says[failure[strings.Index(failure, "-")+1:]]
		require.Regexp(t, fmt.Sprintf("(?m)^%s 1 %s", failure, says), out)
		if says[0] != '1' {
			says = "1 .*: lost rank 1"
		}
		require.Len(t, regexp.MustCompile(fmt.Sprintf("(?m)^%s [02] %s", failure, says)).FindAllString(out, -1), 2, "%s\n%s", failure, out)
	}
}

// TestTorchRendezvous checks the errors of torchrun's rendezvous backend, and its state in the store.
// TestTorchrunMuster (cmd/muster) runs torchrun.
func TestTorchRendezvous(t *testing.T) {
	safe := testcluster.Serve(t, &store.Server{Access: []store.Access{{Secret: []byte("0123456789abcdef"), Write: true}}})
	out := torchScript(t, "tests/torch_rendezvous.py", testcluster.Serve(t, &store.Server{}), safe)
	require.Contains(t, out, "ok errors\nok state\n")
}

// torchScript runs a script with PyTorch until it exits, and fails the test if it does.
func torchScript(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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
