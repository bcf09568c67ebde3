package python_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestReadmeServer runs the lines about a server of the program.
func TestReadmeServer(t *testing.T) {
	const with = "with muster_pg.Server()"
	script(t, []string{"MUSTER_BINARY=" + testcluster.Command(t)}, "-c", "import muster_pg\n"+with+block(t, "README.md", "```python\n"+with))
}

// TestReadme runs the examples of the README on a store of this test.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "127.0.0.1:7070")
	file := filepath.Join(t.TempDir(), "README.md")
	text := strings.ReplaceAll(string(readme), "127.0.0.1:7070", testcluster.Serve(t, new(store.Server)))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	out := script(t, nil, "-m", "doctest", "-v", file)
	m := regexp.MustCompile(`(\d+) passed`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	require.Greater(t, len(regexp.MustCompile(`(?m)^ok$`).FindAllString(out, -1)), 30, out)
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

// TestWhatCanBeSent checks each row of the table in docs/guides/python.md.
func TestWhatCanBeSent(t *testing.T) {
	check := func(library string) []string {
		return []string{"-c", `
import array, collections, functools, http, re, sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal
import msgpack, numpy as np, muster_pg
from muster_pg import _objects
if sys.argv[1] == "torch":
    import torch
rows = re.findall("^[|] [^|]+ [|] (.+) [|] (.+) [|]$", open("../../docs/guides/python.md").read().partition("can be sent")[2], re.M)[1:]
for examples, result in rows:
    if (sys.argv[1] == "torch") != ("torch" in examples):
        continue
    for example in re.findall("` + "`" + `(.+?)` + "`" + `", examples):
        v = eval(example)
        try:
            got = _objects.unpacker(v)(_objects.pack(v))
        except muster_pg.Invalid as e:
            assert result == "refused", (example, e)
        else:
            want = eval(result.strip("` + "`" + `"))
            if isinstance(want, muster_pg.Array):
                got = _objects.unpack(_objects.pack(v))
            assert repr(got) == repr(want) and got.__class__ is want.__class__, (example, got, want)
            if isinstance(want, np.ndarray):
                assert got.dtype == want.dtype, got.dtype
        print(example)
`, library}
	}
	t.Run("numpy", func(t *testing.T) { require.Greater(t, strings.Count(script(t, nil, check("numpy")...), "\n"), 20) })
	t.Run("torch", func(t *testing.T) { require.Equal(t, 4, strings.Count(torchScript(t, check("torch")...), "\n")) })
}

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

// TestEveryVerbIsExplained checks that every public function and method has a docstring, and is in
// an example of the README.
func TestEveryVerbIsExplained(t *testing.T) {
	out := script(t, nil, "-c", `
import inspect, re, muster_pg
readme = "".join(re.findall("^(?:>>>|\\.\\.\\.|muster_pg\\.)(.*)$", open("README.md").read(), re.M))
for name in muster_pg.__all__:
    assert inspect.getdoc(getattr(muster_pg, name)), f"{name} has no docstring"
for kind in (muster_pg.Store, muster_pg.Group, muster_pg.Lease):
    for name, verb in vars(kind).items():
        if name.startswith("_"):
            continue
        assert inspect.getdoc(getattr(kind, name)), f"{kind.__name__}.{name} has no docstring"
        if not isinstance(verb, property):
            assert re.search(rf"\.{name}\(", readme), f"{kind.__name__}.{name} is in no example"
            print(name)
`)
	require.Greater(t, strings.Count(out, "\n"), 30, out)
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

// TestSyntax checks that Python 3.9 can parse every file.
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
