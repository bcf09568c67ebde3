package python_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestPython runs the Python tests: the golden bytes of package wire, and the verbs on a store that
// this test serves.
func TestPython(t *testing.T) {
	out := script(t, []string{"MUSTER_TEST_STORE=" + serve(t, new(store.Server))}, "-W", "error", "-m", "unittest", "discover", "-s", "tests")
	require.NotContains(t, out, "skipped")
	require.Regexp(t, `Ran \d\d+ tests`, out)
}

// TestReadme runs the examples of the README on a store of this test.
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
	require.Greater(t, len(regexp.MustCompile(`(?m)^ok$`).FindAllString(out, -1)), 30, out)
}

// TestReadmeAuthentication runs the lines about secrets and TLS, each on a store that requires
// them, in the directory of the files.
func TestReadmeAuthentication(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, block, ok := strings.Cut(string(readme), "## Authentication\n\n```python\n")
	require.True(t, ok)
	block, _, _ = strings.Cut(block, "```")
	lines := strings.Split(strings.TrimSpace(block), "\n")
	k := makeKeys(t)
	secret := []store.Access{{Secret: k.secret, Write: true}}
	servers := []string{
		serve(t, &store.Server{Access: secret}),
		serve(t, &store.Server{TLS: k.server(t, true)}),
		serve(t, &store.Server{TLS: k.server(t, false), Access: secret}),
	}
	require.Len(t, lines, len(servers))
	var program strings.Builder
	program.WriteString("import muster, os, sys\nos.chdir(sys.argv[1])\n")
	for i, line := range lines {
		require.Contains(t, line, "node0:7070")
		program.WriteString("with " + strings.ReplaceAll(line, "node0:7070", servers[i]) + " as x: print(x)\n")
	}
	out := script(t, nil, "-c", program.String(), k.dir)
	require.Equal(t, 2, strings.Count(out, "<muster.Store "), out)
	require.Contains(t, out, `<muster.Group "world" rank 0 of 1>`)
}

// TestEveryVerbIsExplained checks that every public function and method has a docstring, and is in
// an example of the README.
func TestEveryVerbIsExplained(t *testing.T) {
	out := script(t, nil, "-c", `
import inspect, re, muster
readme = "".join(re.findall("^(?:>>>|\\.\\.\\.|muster\\.)(.*)$", open("README.md").read(), re.M))
for name in muster.__all__:
    assert inspect.getdoc(getattr(muster, name)), f"{name} has no docstring"
for kind in (muster.Store, muster.Group):
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

// TestInstalls installs the package into a new environment, and lets mypy check a program that uses
// it there.
func TestInstalls(t *testing.T) {
	exe, dir := interpreter(t), t.TempDir()
	here, err := os.Getwd()
	require.NoError(t, err)
	root, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	own, err := os.ReadFile("LICENSE")
	require.NoError(t, err)
	require.Equal(t, string(root), string(own), "clients/python/LICENSE is a copy")

	source, venv := filepath.Join(dir, "source"), filepath.Join(dir, "venv")
	require.NoError(t, os.CopyFS(source, os.DirFS(here))) // pip leaves files there
	run := func(exe string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, exe, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(exe, "-m", "venv", venv); err != nil {
		t.Skipf("SKIPPED: %s makes no environments: %s", exe, lastLine([]byte(out)))
	}
	python := filepath.Join(venv, "bin", "python")
	const retry = "--retries=1"
	out, err := run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", retry, source)
	if err != nil && strings.Contains(out, "connection") {
		t.Skipf("SKIPPED: pip cannot fetch setuptools and msgpack: %s", lastLine([]byte(out)))
	}
	require.NoError(t, err, out)

	program := filepath.Join(dir, "program.py")
	require.NoError(t, os.WriteFile(program, []byte(`
import sys
from importlib.metadata import metadata
from typing import List, Optional

import muster

def rank(group: muster.Group) -> List[float]:
    group.barrier(timeout=30)
    return group.all_reduce([group.rank + 0.5])

def main() -> None:
    with muster.Store.connect(sys.argv[1]) as store:
        values: List[bytes] = []
        store.set("k", b"v", ttl=60)
        values += store.wait("k")
        try:
            store.swap("k", None, b"w")
        except muster.Conflict as e:
            there: Optional[bytes] = e.value
            assert there == values[0]
    with muster.Group.join(0, 1, sys.argv[1]) as group:
        assert rank(group) == [0.5]
    m = metadata("muster-pg")
    print(m["License-Expression"], m["License-File"], m["Requires-Python"], m["Requires-Dist"], muster.__file__)

main()
`), 0o600))
	out, err = run(python, program, serve(t, new(store.Server)))
	require.NoError(t, err, out)
	require.Regexp(t, `^Apache-2.0 LICENSE >=3.9 msgpack>=1.0 .*site-packages`, out)
	if out, err := run(exe, "-m", "mypy", "--version"); err != nil {
		t.Skipf("SKIPPED: no mypy for %s: pip install mypy==1.18.2: %s", exe, lastLine([]byte(out)))
	}
	out, err = run(exe, "-m", "mypy", "--strict", "--cache-dir", filepath.Join(dir, "cache"), "--python-executable", python, program)
	require.NoError(t, err, out)
}

// TestTypes lets mypy check the package and its tests, in strict mode.
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
