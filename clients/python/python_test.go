package python_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestPython runs the tests that are in Python: the golden bytes of package wire, and the verbs on a store that is served here.
func TestPython(t *testing.T) {
	out := script(t, []string{"MUSTER_TEST_STORE=" + serve(t, new(store.Server))}, "-W", "error", "-m", "unittest", "discover", "-s", "tests")
	require.NotContains(t, out, "skipped")
	require.Regexp(t, `Ran \d\d tests`, out)
}

// TestReadme runs the examples of the README, on a store of this test.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "127.0.0.1:7070")
	file := filepath.Join(t.TempDir(), "README.md")
	text := strings.ReplaceAll(string(readme), "127.0.0.1:7070", serve(t, new(store.Server)))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out := script(t, nil, "-m", "doctest", "-v", file)
	m := regexp.MustCompile(`(\d+) passed`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	require.Greater(t, len(regexp.MustCompile(`(?m)^ok$`).FindAllString(out, -1)), 5, out)
}

// TestTypes has mypy check the package, and its tests, as strictly as it can.
func TestTypes(t *testing.T) {
	exe := interpreter(t)
	if out, err := exec.CommandContext(t.Context(), exe, "-m", "mypy", "--version").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no mypy for %s: pip install mypy==1.18.2: %s", exe, lastLine(out))
	}
	for _, what := range [][]string{nil, {"tests"}} {
		out := script(t, nil, append([]string{"-m", "mypy", "--cache-dir", t.TempDir()}, what...)...)
		require.Contains(t, out, "Success")
	}
}

// TestSyntax: Python 3.9 can read every file.
func TestSyntax(t *testing.T) {
	script(t, nil, "-c", `
import ast, pathlib
files = list(pathlib.Path(".").rglob("*.py"))
assert len(files) > 10, files
for f in files:
    ast.parse(f.read_text(), str(f), feature_version=(3, 9))
    lines = f.read_text().count("\n")
    assert lines <= 500, f"{f} has {lines} lines, more than 500: split it by what it does"
`)
}
