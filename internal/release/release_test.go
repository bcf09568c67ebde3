package main_test

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/modfile"

	release "github.com/muster-pg/muster/internal/release"
)

// version is that of the rehearsal: no release has it.
const version = "v0.999.0"

const root = "github.com/muster-pg/muster"

var day = time.Date(2026, 12, 31, 23, 59, 0, 0, time.UTC)

// TestRelease prepares a release in a copy of the working tree, and commits and tags it there. It
// then uses the release as a new user would: from an empty directory, by way of a module proxy.
func TestRelease(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	refuses(t, dir)
	tags, err := release.Prepare(dir, version, day)
	if err != nil {
		t.Fatal(err)
	}
	prepared(t, dir)
	out := do(t, dir, nil, "bash", "-ec", commands(release.Instructions(version, tags), "git push"))
	t.Log(out)
	for v, want := range map[string]string{version: "exists", "v0.998.0": "lower than " + version} {
		if _, err := release.Prepare(dir, v, day); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", v, err, want)
		}
	}
	if os.Getenv("MUSTER_TEST_RELEASE") == "" {
		t.Skip("SKIPPED: MUSTER_TEST_RELEASE is not set: the release is not installed")
	}
	rehearse(t, dir, tags)
}

// commands returns the lines of a script but those with a prefix.
func commands(script, without string) string {
	return regexp.MustCompile(`(?m)^`+without+`.*$`).ReplaceAllString(script, "")
}

// do runs a command in dir with env added to the environment, and returns its standard output.
func do(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	var stderr strings.Builder
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), env...), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s%s", name, args, err, out, stderr.String())
	}
	return string(out)
}

// repository returns a new repository with the files of the working tree.
func repository(t *testing.T) string {
	t.Helper()
	from, dir := filepath.Join("..", ".."), t.TempDir()
	list, err := exec.CommandContext(t.Context(), "git", "-C", from, "ls-files", "-z", "-co", "--exclude-standard").Output()
	if err != nil {
		t.Skip("SKIPPED: needs git and a checkout: ", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // deleted and not committed
		}
		info, err2 := os.Stat(filepath.Join(from, name))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		write(t, filepath.Join(dir, name), string(text))
		if err := os.Chmod(filepath.Join(dir, name), info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	do(t, dir, nil, "bash", "-ec", `
		git init -q .
		git config user.name test
		git config user.email test@example.com
		git config commit.gpgsign false
		git config tag.gpgsign false
		git config gc.auto 0
		git config core.autocrlf false
		git add .
		git commit -qm all`)
	return dir
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, names ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(names...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// refuses checks that Prepare changes nothing if it returns an error.
func refuses(t *testing.T, dir string) {
	t.Helper()
	for _, v := range []string{"", "0.1.0", "v0.1", "v01.0.0", "v0.1.0+build", "v0.1.0-rc1", "v0.1.0-beta.1", "v0.1.0-rc.01", "v2.0.0", "latest", "v0.1.0\n"} {
		if _, err := release.Prepare(dir, v, day); err == nil || !strings.Contains(err.Error(), "none of the form") {
			t.Errorf("%q: %v", v, err)
		}
	}
	for name, tc := range map[string]struct{ from, to, want string }{
		"CHANGELOG.md":                         {"## [Unreleased]", "## [Next]", "section Unreleased is missing"},
		"clients/python/muster_pg/_version.py": {"\n__version__ = ", "\n# __version__ = ", "0 lines match"},
		"deploy/helm/muster/Chart.yaml":        {"\nappVersion: ", "\n# appVersion: ", "0 lines match"},
		"cmd/muster/go.mod":                    {"go 1.26.0\n", "go 1.26.0\n\nreplace a.example/b => ../b\n", "a published module has a replace"},
		"trace/prom/go.mod":                    {root + " v", root + "/bench v0.1.0\n\t" + root + " v", "requires " + root + "/bench, which is not"},
		"trace/otel/go.mod":                    {"trace/otel\n", "trace/telemetry\n", "want " + root + "/trace/otel"},
	} {
		file := filepath.Join(dir, filepath.FromSlash(name))
		before := read(t, file)
		if !strings.Contains(before, tc.from) {
			t.Fatalf("%s does not contain %q", name, tc.from)
		}
		write(t, file, strings.Replace(before, tc.from, tc.to, 1))
		if _, err := release.Prepare(dir, version, day); err == nil || !strings.Contains(err.Error(), "has changes: commit them first") {
			t.Errorf("%s not committed: %v", name, err)
		}
		do(t, dir, nil, "git", "commit", "-qam", "broken")
		if _, err := release.Prepare(dir, version, day); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if status := do(t, dir, nil, "git", "status", "--porcelain"); status != "" {
			t.Errorf("%s: Prepare has failed and changed %s", name, status)
		}
		do(t, dir, nil, "git", "reset", "-q", "--hard", "HEAD~1")
	}
}

// prepared checks what Prepare has written.
func prepared(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]string{
		"CHANGELOG.md":                         "## [Unreleased]\n\n## [0.999.0] - 2026-12-31\n\n### Added\n",
		"clients/python/muster_pg/_version.py": "\n__version__ = \"0.999.0\"\n",
		"deploy/kubernetes/store.yaml":         " image: muster:" + version + "\n",
		"deploy/helm/muster/Chart.yaml":        "\nversion: 0.999.0\nappVersion: " + version + "\n",
		"go.work":                              root + "/store/etcdlog " + version + " => ./store/etcdlog\n",
	} {
		if text := read(t, dir, name); !strings.Contains(text, want) {
			t.Errorf("%s does not contain %q", name, want)
		}
	}
	for name := range strings.FieldsSeq(do(t, dir, nil, "git", "ls-files", "*go.mod", "*.md", "*.yaml")) {
		text := read(t, dir, name)
		if path.Base(name) != "go.mod" {
			if strings.Contains(text, "No version has been released") {
				t.Errorf("%s says that no version has been released", name)
			}
			continue
		}
		mod, err := modfile.Parse(name, []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range mod.Require {
			if strings.HasPrefix(r.Mod.Path+"/", root+"/") && r.Mod.Version != version {
				t.Errorf("%s requires %v", name, r.Mod)
			}
		}
	}
	notes, err := release.Notes(read(t, dir, "CHANGELOG.md"), version)
	if err != nil || !strings.HasPrefix(notes, "### Added\n") || strings.Contains(notes, "\n## ") {
		t.Errorf("notes of the release: %v, %.80q", err, notes)
	}
	if notes, err := release.Notes(read(t, dir, "CHANGELOG.md"), "v0.998.0"); err == nil {
		t.Errorf("notes of a version that is not there: %.80q", notes)
	}
}

// TestCandidate checks the forms of a version that is not final.
func TestCandidate(t *testing.T) {
	t.Parallel()
	dir := repository(t)
	tags, err := release.Prepare(dir, "v0.999.0-rc.2", day)
	if err != nil || !slices.Contains(tags, "cmd/muster/v0.999.0-rc.2") {
		t.Fatal(tags, err)
	}
	if text := read(t, dir, "clients/python/muster_pg/_version.py"); !strings.Contains(text, "\n__version__ = \"0.999.0rc2\"\n") {
		t.Error(text)
	}
}

// TestPublished compares the list of published modules with that of CONTRIBUTING.md.
func TestPublished(t *testing.T) {
	t.Parallel()
	row := regexp.MustCompile(`(?m)^\| (.*) \| are (published|never published)`).FindAllStringSubmatch(read(t, "../../CONTRIBUTING.md"), -1)
	named := map[string]string{}
	for _, m := range row {
		for dir := range strings.SplitSeq(strings.ReplaceAll(m[1], "the root", "`.`"), ", ") {
			named[strings.Trim(dir, "`")] = m[2]
		}
	}
	work, err := modfile.ParseWork("go.work", []byte(read(t, "../../go.work")), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"tools": "never published"}
	for _, use := range work.Use {
		want[path.Clean(use.Path)] = "never published"
	}
	for _, dir := range release.Published {
		want[dir] = "published"
	}
	if !maps.Equal(named, want) {
		t.Errorf("CONTRIBUTING.md has %v, want %v", named, want)
	}
}
