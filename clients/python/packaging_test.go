package python_test

import (
	"archive/zip"
	"bytes"
	"context"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// TestPackages builds the distributions as a release does, and uses them as a new user does: it
// installs "muster-pg[server]" from the files alone into a new environment, runs the README and the
// tests of the source distribution there, and uninstalls all of it.
func TestPackages(t *testing.T) {
	testcluster.SoakOnly(t, ".ci/run has it: it builds the command, and a Python environment")
	p := buildPackages(t)
	t.Run("metadata", p.testMetadata)
	t.Run("binary", p.testBinary)
	t.Run("platforms", p.testPlatforms)

	p.addNumpy(t)
	before := p.installed(t)
	p.pip(t, "install", "muster-pg[server]")
	t.Run("readme", p.testReadme)
	t.Run("types", p.testTypes)
	t.Run("sdist", p.testSdist)
	p.pip(t, "uninstall", "--yes", "muster-pg", "muster-pg-server", "msgpack")
	require.Equal(t, before, p.installed(t), "uninstalling leaves nothing")
}

// packages are built distributions, and an environment to install them into.
type packages struct {
	dir, dist, venv string
	python          string // of the environment
	wheels          string // the directory of msgpack's wheel
	version         string
}

// buildPackages builds the source distribution, from it the wheel of muster-pg, and the wheel of
// muster-pg-server for this platform. It skips the test without the tools that .ci/python installs.
func buildPackages(t *testing.T) *packages {
	exe, dir := interpreter(t), t.TempDir()
	p := &packages{
		dir: dir, dist: filepath.Join(dir, "dist"), venv: filepath.Join(dir, "venv"),
		wheels: filepath.Join(filepath.Dir(exe), "..", "wheels"),
	}
	p.python = filepath.Join(p.venv, "bin", "python")
	if out, err := exec.CommandContext(t.Context(), exe, "-c", "import build, packaging, setuptools, trove_classifiers").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: %s cannot build packages; run .ci/python: %s", exe, lastLine(out))
	}
	if _, err := os.Stat(p.wheels); err != nil {
		t.Skipf("SKIPPED: no wheel of msgpack; run .ci/python: %v", err)
	}
	if runtime.GOOS == "windows" {
		t.Skip("SKIPPED: there is no wheel of muster-pg-server for Windows")
	}
	source := filepath.Join(dir, "clients", "python") // a copy: setuptools leaves files there
	run(t, "", "mkdir", "-p", filepath.Dir(source), filepath.Join(dir, "wire"))
	run(t, "", "cp", "-R", ".", source)
	run(t, "", "cp", "-R", "../../wire/testdata", filepath.Join(dir, "wire"))
	run(t, source, exe, "-m", "build", "--no-isolation", "--outdir", p.dist, ".")
	run(t, "", exe, "server/build_wheels.py", "--out", p.dist, "--platform", runtime.GOOS+"/"+runtime.GOARCH)
	run(t, "", exe, "-m", "venv", p.venv)
	p.version = strings.TrimSpace(run(t, "", exe, "-c", "from muster_pg import _version; print(_version.__version__)"))
	return p
}

// addNumpy has the environment find the numpy of the interpreter, as that of a user who has it.
func (p *packages) addNumpy(t *testing.T) {
	numpy := strings.TrimSpace(run(t, "", interpreter(t), "-c", "import numpy, os; print(os.path.dirname(numpy.__file__))"))
	dir := t.TempDir()
	for _, path := range []string{numpy, numpy + ".libs"} {
		if _, err := os.Stat(path); err == nil {
			require.NoError(t, os.Symlink(path, filepath.Join(dir, filepath.Base(path))))
		}
	}
	site := strings.TrimSpace(run(t, "", p.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
	require.NoError(t, os.WriteFile(filepath.Join(site, "numpy.pth"), []byte(dir+"\n"), 0o600))
}

// testMetadata checks what an index checks, and that the README that it shows has no relative link.
func (p *packages) testMetadata(t *testing.T) {
	out := script(t, nil, "-c", `
import email, re, sys, tarfile, zipfile
from pathlib import Path
from packaging.metadata import Metadata
from trove_classifiers import classifiers

def metadata(path):
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as z:
            names = [n for n in z.namelist() if n.endswith(".dist-info/METADATA")]
            assert z.testzip() is None
            return z.read(names[0])
    with tarfile.open(path) as t:
        return t.extractfile(path.name[:-len(".tar.gz")] + "/PKG-INFO").read()

for path in sorted(Path(sys.argv[1]).iterdir()):
    m = Metadata.from_email(metadata(path), validate=True)
    assert set(m.classifiers) <= set(classifiers), set(m.classifiers) - set(classifiers)
    assert {"Homepage", "Documentation", "Source", "Changelog", "Issues"} <= set(m.project_urls)
    assert m.description_content_type == "text/markdown" and m.summary and m.keywords
    links = re.findall(r"\]\(([^)]+)\)|^\[\w+\]: (\S+)$", m.description, re.M)
    assert links and all("".join(l).startswith("https://") for l in links), links
    print(m.name, m.version, m.license_expression, m.license_files, m.requires_python, *(m.requires_dist or []))
`, p.dist)
	want := []string{
		"muster-pg " + p.version + " Apache-2.0 ['LICENSE'] >=3.9 msgpack>=1.0 muster-pg-server==" + p.version + `; extra == "server"`,
		"muster-pg " + p.version + " Apache-2.0 ['LICENSE'] >=3.9 msgpack>=1.0 muster-pg-server==" + p.version + `; extra == "server"`,
		"muster-pg-server " + p.version + " Apache-2.0 ['LICENSE', 'THIRD_PARTY_LICENSES'] >=3.9",
	}
	require.ElementsMatch(t, want, strings.Split(strings.TrimSpace(out), "\n"))

	link := regexp.MustCompile(`https://github\.com/muster-pg/muster/(?:blob|tree)/main/([\w./-]+)(?:#([\w-]+))?`)
	for _, file := range []string{"README.md", "pyproject.toml", "server/README.md", "server/build_wheels.py"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		links := link.FindAllSubmatch(text, -1)
		require.NotEmpty(t, links, file)
		for _, l := range links {
			target := filepath.Join("..", "..", string(l[1]))
			require.FileExists(t, filepath.Join(target, map[bool]string{true: "README.md"}[filepath.Ext(target) == ""]), file)
			if anchor := string(l[2]); anchor != "" && anchor != "readme" {
				text, err := os.ReadFile(target)
				require.NoError(t, err)
				heading := `(?im)^#+ ` + strings.ReplaceAll(regexp.QuoteMeta(anchor), "-", "[ -]") + `$`
				require.Regexp(t, heading, string(text), file)
			}
		}
	}
}

// testBinary checks that the wheel has a static binary that may be run, the licenses of its parts,
// and the same bytes when it is written again.
func (p *packages) testBinary(t *testing.T) {
	path := p.one(t, "muster_pg_server-*.whl")
	z, err := zip.OpenReader(path)
	require.NoError(t, err)
	defer func() { _ = z.Close() }()
	modes := make(map[string]fs.FileMode)
	for _, f := range z.File {
		modes[regexp.MustCompile(`^[^/]*\.(data|dist-info)/`).ReplaceAllString(f.Name, "")] = f.Mode()
	}
	require.Equal(t, map[string]fs.FileMode{
		"scripts/muster": 0o755, "licenses/LICENSE": 0o644, "licenses/THIRD_PARTY_LICENSES": 0o644,
		"METADATA": 0o644, "WHEEL": 0o644, "RECORD": 0o644,
	}, modes)

	name := "muster_pg_server-" + p.version
	binary, err := fs.ReadFile(z, name+".data/scripts/muster")
	require.NoError(t, err)
	if runtime.GOOS == "linux" {
		f, err := elf.NewFile(bytes.NewReader(binary))
		require.NoError(t, err)
		for _, part := range f.Progs {
			require.NotEqual(t, elf.PT_INTERP, part.Type, "it needs a dynamic linker")
		}
	}
	licenses, err := fs.ReadFile(z, name+".dist-info/licenses/THIRD_PARTY_LICENSES")
	require.NoError(t, err)
	for _, of := range []string{"Go go1.", "github.com/spf13/cobra@", "google.golang.org/grpc@", "NOTICE"} {
		require.Contains(t, string(licenses), of)
	}

	file, again := filepath.Join(t.TempDir(), "muster"), t.TempDir()
	require.NoError(t, os.WriteFile(file, binary, 0o600))
	p.pack(t, file, again, runtime.GOOS+"/"+runtime.GOARCH)
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	second, err := os.ReadFile(filepath.Join(again, filepath.Base(path)))
	require.NoError(t, err)
	require.True(t, bytes.Equal(first, second), "the wheel is not reproducible")
}

// testPlatforms checks which wheel pip chooses on each platform, and what it reports on others.
func (p *packages) testPlatforms(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "muster")
	require.NoError(t, os.WriteFile(file, nil, 0o600)) // pip does not look into it
	p.pack(t, file, dir, "linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64")
	for platform, want := range map[string]string{
		"manylinux2014_x86_64":  "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
		"musllinux_1_1_aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
		"macosx_12_0_arm64":     "macosx_12_0_arm64", "macosx_12_0_x86_64": "macosx_12_0_x86_64",
		"win_amd64": "",
	} {
		got := t.TempDir()
		out, err := output(t, "", p.python, "-m", "pip", "download", "--pre", "--no-index", "--find-links", dir, "--no-deps",
			"--only-binary", ":all:", "--platform", platform, "--dest", got, "muster-pg-server")
		if want == "" {
			require.Error(t, err, platform)
			require.Contains(t, out, "No matching distribution found for muster-pg-server", platform)
			continue
		}
		require.NoError(t, err, "%s: %s", platform, out)
		require.FileExists(t, filepath.Join(got, "muster_pg_server-"+p.version+"-py3-none-"+want+".whl"))
	}
}

// testReadme runs the first program of the README as two ranks, and its examples on a store, all
// with the muster that was installed.
func (p *packages) testReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, program, ok := strings.Cut(string(readme), "`train.py`:\n\n```python\n")
	require.True(t, ok)
	program, rest, _ := strings.Cut(program, "```\n")
	m := regexp.MustCompile("(?s)```sh\n\\$ (muster run .*?)\n(.*?)```").FindStringSubmatch(rest)
	require.NotNil(t, m)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "train.py"), []byte(program), 0o600))
	require.Equal(t, m[2], p.run(t, dir, strings.Fields(m[1])...))

	out := p.run(t, dir, "muster", "version")
	require.Regexp(t, `^muster v`+regexp.QuoteMeta(strings.SplitN(p.version, ".dev", 2)[0])+`\b`, out)
	out = p.run(t, dir, "python", "-c", "import muster_pg; print(muster_pg.__version__, muster_pg.__file__)")
	require.Contains(t, out, p.version+" "+p.venv)

	text := strings.ReplaceAll(string(readme), "127.0.0.1:7070", p.serve(t))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), []byte(text), 0o600))
	p.run(t, dir, "python", "-m", "doctest", "README.md")
}

// testTypes lets mypy check a program that uses the installed package.
func (p *packages) testTypes(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program.py")
	require.NoError(t, os.WriteFile(program, []byte(`
import sys
from typing import List, Optional

import muster_pg

def rank(group: muster_pg.Group) -> List[float]:
    group.barrier(timeout=30)
    return group.all_reduce([group.rank + 0.5])

def main() -> None:
    with muster_pg.Store.connect(sys.argv[1]) as store:
        values: List[bytes] = []
        store.set("k", b"v", ttl=60)
        values += store.wait("k")
        try:
            store.swap("k", None, b"w")
        except muster_pg.Conflict as e:
            there: Optional[bytes] = e.value
            assert there == values[0]
    with muster_pg.Group.join(0, 1, sys.argv[1]) as group:
        assert rank(group) == [0.5]

main()
`), 0o600))
	p.run(t, "", "python", program, testcluster.Serve(t, new(store.Server)))
	mypy := []string{"-m", "mypy", "--strict", "--cache-dir", t.TempDir(), "--python-executable", p.python}
	run(t, "", interpreter(t), append(mypy, program)...)

	require.NoError(t, os.WriteFile(program, []byte("import muster_pg\nmuster_pg.Store.connect(7)\n"), 0o600))
	out, err := output(t, "", interpreter(t), append(mypy, program)...)
	require.Error(t, err)
	require.Contains(t, out, `expected "str"`)
}

// testSdist runs the tests of the source distribution, which start the muster on PATH.
func (p *packages) testSdist(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, "tar", "xzf", p.one(t, "muster_pg-*.tar.gz"), "--strip-components", "1")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "muster_pg"))) // what is tested is installed
	out := p.run(t, dir, "python", "-W", "error", "-m", "unittest", "discover", "-s", "tests")
	require.NotContains(t, out, "skipped")
	require.Regexp(t, `Ran \d\d+ tests`, out)
}

// serve runs muster serve in the environment until the end of the test, and returns its address.
func (p *packages) serve(t *testing.T) string {
	cmd := p.command(t.Context(), t.TempDir(), "muster", "serve", "--listen", "127.0.0.1:0")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line := make([]byte, 100)
	n, err := out.Read(line)
	require.NoError(t, err)
	return strings.TrimPrefix(strings.TrimSpace(string(line[:n])), "muster://")
}

// pack writes wheels of muster-pg-server for platforms, with a file as the binary.
func (p *packages) pack(t *testing.T, file, dir string, platforms ...string) {
	args := []string{"server/build_wheels.py", "--out", dir, "--binary", file}
	for _, platform := range platforms {
		args = append(args, "--platform", platform)
	}
	run(t, "", interpreter(t), args...)
}

// pip runs pip in the environment, which gets the distributions and the wheel of msgpack alone.
func (p *packages) pip(t *testing.T, verb string, args ...string) {
	options := []string{"-m", "pip", verb, "--quiet", "--disable-pip-version-check"}
	if verb == "install" {
		options = append(options, "--no-index", "--find-links", p.dist, "--find-links", p.wheels)
	}
	run(t, p.dir, p.python, append(options, args...)...)
}

// one returns the path of the only distribution that matches a pattern.
func (p *packages) one(t *testing.T, pattern string) string {
	paths, err := filepath.Glob(filepath.Join(p.dist, pattern))
	require.NoError(t, err)
	require.Len(t, paths, 1)
	return paths[0]
}

// installed returns the files of the environment, without those that the interpreter compiles.
func (p *packages) installed(t *testing.T) (files []string) {
	require.NoError(t, filepath.WalkDir(p.venv, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == "__pycache__" {
			return filepath.SkipDir
		}
		files = append(files, path)
		return err
	}))
	return files
}

// command returns a command that finds the programs of the environment first.
func (p *packages) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	bin := filepath.Join(p.venv, "bin")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1", "MUSTER_TEST_STORE=")
	return cmd
}

// run returns the output of a program of the environment, and fails the test if the program fails.
func (p *packages) run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := p.command(ctx, dir, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// run returns the output of a command, and fails the test if the command fails.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	out, err := output(t, dir, name, args...)
	require.NoError(t, err, out)
	return out
}

// output returns the output of a command that runs in a directory, in this one by default.
func output(t *testing.T, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}
