package testcluster

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Python returns the Python that MUSTER_PYTHON names, or else the one that .ci/python has installed.
// It skips the test if that has not all of these modules.
func Python(t testing.TB, modules ...string) (exe string) {
	t.Helper()
	return interpreter(t, installed("MUSTER_PYTHON", "python"), "run .ci/python, or set MUSTER_PYTHON", modules)
}

// Torch is Python for MUSTER_TORCH and .ci/python torch, with torch.
func Torch(t testing.TB, modules ...string) (exe string) {
	t.Helper()
	return interpreter(t, installed("MUSTER_TORCH", "torch"), "run .ci/python torch, or set MUSTER_TORCH", append(modules, "torch"))
}

func installed(variable, kind string) string {
	cache, _ := os.UserCacheDir()
	return cmp.Or(os.Getenv(variable), filepath.Join(cache, "muster", kind, "bin", "python"))
}

func interpreter(t testing.TB, exe, from string, modules []string) string {
	t.Helper()
	script := fmt.Sprintf("import importlib.util as u, sys; sys.exit(not all(u.find_spec(m) for m in %q.split()))", strings.Join(modules, " "))
	if out, err := exec.CommandContext(t.Context(), exe, "-c", script).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no Python with %s at %s; %s: %v %s", strings.Join(modules, " and "), exe, from, err, out)
	}
	return exe
}
