package python_test

import (
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestPython runs the Python tests: the golden bytes of package wire, and the verbs on a store that
// this test serves.
func TestPython(t *testing.T) {
	env := []string{"MUSTER_TEST_STORE=" + testcluster.Serve(t, new(store.Server)), "MUSTER_BINARY=" + testcluster.Command(t)}
	modules := map[string]string{"a to d": "test_[a-d]*.py", "e to o": "test_[e-o]*.py", "p to r": "test_[p-r]*.py", "s": "test_s*.py", "t to z": "test_[!a-s]*.py"}
	testcluster.AtOnce(t, maps.All(modules), func(t *testing.T, modules string) {
		out := script(t, env, "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-p", modules)
		require.NotContains(t, out, "skipped")
		require.Regexp(t, `Ran \d\d+ tests`, out)
	})
}

// block returns the code of a Markdown file that begins after a text.
func block(t *testing.T, file, after string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	_, code, ok := strings.Cut(string(text), after)
	require.True(t, ok, "%s has no %q", file, after)
	code, _, _ = strings.Cut(code, "```")
	return code
}

// TestGuide runs the program of docs/guides/python.md as rank 1 of a group whose rank 0 is in Go.
func TestGuide(t *testing.T) {
	program := block(t, "../../docs/guides/python.md", "```python\n")
	addr := "muster://" + testcluster.Serve(t, new(store.Server))
	cmd := exec.CommandContext(bounded(t), interpreter(t), "-c", program)
	cmd.Env = environment(t, "RANK=1", "WORLD_SIZE=2", "MUSTER_STORE="+addr)
	cmd.Stderr = t.Output()
	require.NoError(t, cmd.Start())
	g, err := pgroup.Create(bounded(t), pgroup.Config{Address: addr, Size: 2})
	require.NoError(t, err)
	defer func() { _ = g.Close() }()
	layers, err := pgroup.Gather(bounded(t), g, 0, "layer 0")
	require.NoError(t, err)
	require.Equal(t, []string{"layer 0", "layer 1"}, layers)
	require.NoError(t, g.Shutdown(bounded(t)))
	require.NoError(t, cmd.Wait())
}

// TestWhatCanBeSent checks the table of docs/guides/python.md with PyTorch; TestPython does so without.
func TestWhatCanBeSent(t *testing.T) { torchScript(t, "tests/test_docs.py", "Sent") }

// TestReadmeAuthentication runs the lines about secrets and TLS, each on a store that requires
// them, in the directory of the files.
func TestReadmeAuthentication(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(block(t, "README.md", "## Authentication\n\n```python\n")), "\n")
	k := makeKeys(t)
	secret := []store.Access{{Secret: k.secret, Write: true}}
	servers := []string{
		testcluster.Serve(t, &store.Server{Access: secret}),
		testcluster.Serve(t, &store.Server{TLS: k.server(t, true)}),
		testcluster.Serve(t, &store.Server{TLS: k.server(t, false), Access: secret}),
	}
	require.Len(t, lines, len(servers))
	var program strings.Builder
	program.WriteString("import muster_pg, os, sys\nos.chdir(sys.argv[1])\n")
	for i, line := range lines {
		require.Contains(t, line, "node0:7070")
		program.WriteString("with " + strings.ReplaceAll(line, "node0:7070", servers[i]) + " as x: print(x)\n")
	}
	out := script(t, nil, "-c", program.String(), k.dir)
	require.Equal(t, 2, strings.Count(out, "<muster_pg.Store "), out)
	require.Contains(t, out, `<muster_pg.Group "world" rank 0 of 1>`)
}

// TestTypes lets mypy check the package and its tests, in strict mode.
func TestTypes(t *testing.T) {
	testcluster.SoakOnly(t, ".ci/run has it: mypy takes half a minute")
	exe := interpreter(t)
	if out, err := exec.CommandContext(t.Context(), exe, "-m", "mypy", "--version").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no mypy for %s: pip install mypy==1.18.2: %s", exe, lastLine(out))
	}
	for _, what := range [][]string{nil, {"tests"}, {"server/build_wheels.py"}} {
		out := script(t, nil, append([]string{"-m", "mypy", "--cache-dir", t.TempDir()}, what...)...)
		require.Contains(t, out, "Success")
	}
}
