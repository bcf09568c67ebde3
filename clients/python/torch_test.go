package python_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/torchstore"
)

// TestTorchGroup runs a process group of PyTorch on the backend of muster_pg.torch, whose store is
// also its TCPStore: the verbs, mismatches, a rank that is missing and one that is killed.
func TestTorchGroup(t *testing.T) {
	addr := serve(t, &store.Server{Protocols: []store.Protocol{new(torchstore.Protocol)}})
	cmd := exec.CommandContext(bounded(t), testcluster.Torch(t, "numpy"), filepath.Join("tests", "torch_group.py"), addr)
	cmd.Env = environment(t, "OMP_NUM_THREADS=1")
	for i, v := range cmd.Env { // torch's Python has no msgpack
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			msgpack := script(t, nil, "-c", "import msgpack, os; print(os.path.dirname(os.path.dirname(msgpack.__file__)))")
			cmd.Env[i] = "PYTHONPATH=" + path + ":" + strings.TrimSpace(msgpack)
		}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for part, ranks := range map[string]int{"tensors": 4, "arrays": 4, "objects": 4, "concurrent": 4, "mismatches": 4, "failures": 3} {
		require.Equal(t, ranks, strings.Count(string(out), "ok "+part), "%s\n%s", part, out)
	}
}
