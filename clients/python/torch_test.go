package python_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// TestTorchGroup runs a process group of PyTorch on the backend of muster_pg.torch, whose store is
// also its TCPStore: the verbs, mismatches, a rank that is missing and one that is killed.
func TestTorchGroup(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Protocols: []store.Protocol{new(tcpstore.Protocol)}})
	out := torchScript(t, "torch_group.py", addr)
	for part, ranks := range map[string]int{"tensors": 4, "arrays": 4, "objects": 4, "concurrent": 4, "mismatches": 4, "failures": 3} {
		require.Equal(t, ranks, strings.Count(out, "ok "+part), "%s\n%s", part, out)
	}
}

// TestTorchRendezvous checks the errors of torchrun's rendezvous backend, and its state in the store.
// TestTorchrunMuster (cmd/muster) runs torchrun.
func TestTorchRendezvous(t *testing.T) {
	safe := testcluster.Serve(t, &store.Server{Access: []store.Access{{Secret: []byte("0123456789abcdef"), Write: true}}})
	out := torchScript(t, "torch_rendezvous.py", testcluster.Serve(t, &store.Server{}), safe)
	require.Contains(t, out, "ok errors\nok state\n")
}

// torchScript runs a script of tests/ with PyTorch until it exits, and fails the test if it does.
func torchScript(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(bounded(t), testcluster.Torch(t, "numpy"), append([]string{filepath.Join("tests", name)}, args...)...)
	cmd.Env = environment(t, "OMP_NUM_THREADS=1")
	for i, v := range cmd.Env { // torch's Python has no msgpack
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			msgpack := script(t, nil, "-c", "import msgpack, os; print(os.path.dirname(os.path.dirname(msgpack.__file__)))")
			cmd.Env[i] = "PYTHONPATH=" + path + ":" + strings.TrimSpace(msgpack)
		}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
