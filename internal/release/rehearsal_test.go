package main_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	release "github.com/muster-pg/muster/internal/release"
)

// rehearse installs the release that tags name, in the repository in dir, gets each of its modules,
// and does what README.md and docs/getting-started.md say.
func rehearse(t *testing.T, dir string, tags []string) {
	env, bin := newUser(t, proxy(t, dir, tags))
	env = append(env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))

	readme := read(t, dir, "README.md")
	home := t.TempDir() // an empty directory
	out := do(t, home, env, "bash", "-ec", shell(t, readme, "## Install"))
	for _, want := range []string{"lost rank 2", `group "world"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the README's first commands do not print %q:\n%s", want, out)
		}
	}
	for _, arg := range []string{"version", "--version"} {
		if out := do(t, home, env, "bash", "-ec", "muster "+arg); !strings.HasPrefix(out, "muster "+version+" (go") {
			t.Errorf("muster %s: %s", arg, out)
		}
	}
	for _, mod := range release.Published {
		t.Run("get "+mod, func(t *testing.T) {
			get(t, env, module.Version{Path: strings.TrimSuffix(root+"/"+mod, "/."), Version: version})
		})
	}

	const call = "$ muster run -n 4 -- ./train\n"
	tutorial := read(t, dir, "docs", "getting-started.md")
	source := block(t, tutorial, "## 2. Write a program", "go")
	train := filepath.Join(home, "train")
	steps := strings.SplitAfter(shell(t, tutorial, "## 2. Write a program"), "cd train\n")
	if len(steps) != 2 {
		t.Fatalf("the tutorial's commands do not begin with mkdir and cd: %q", steps)
	}
	do(t, home, env, "bash", "-ec", strings.Join(steps, ""))
	session := block(t, tutorial, "## 3. Run it", "sh")
	example := "package main\n\nimport (\n\"context\"\n\"fmt\"\n\"log\"\n\n\"" + root + "/pgroup\"\n)\n\n" +
		block(t, readme, "## Ten lines", "go") + "\nfunc main() {\n\tif err := train(context.Background()); err != nil {\n\t\tlog.Fatal(err)\n\t}\n}\n"
	for name, text := range map[string]string{"docs/getting-started.md": source, "README.md": example} {
		write(t, filepath.Join(train, "main.go"), text)
		before, want, ok := strings.Cut(session, call)
		if !ok {
			t.Fatalf("the tutorial does not have %q", call)
		}
		do(t, train, env, "bash", "-ec", strings.ReplaceAll("\n"+before, "\n$ ", "\n"))
		if out := do(t, train, env, "bash", "-ec", call[2:]); out != want {
			t.Errorf("the program of %s prints %q, want %q", name, out, want)
		}
	}
	if !strings.Contains(readme, call) {
		t.Errorf("README.md does not have %q", call)
	}
}

// get gets the packages of m, in a module without other requirements, and compiles them. Modules but
// that of the root directory have one package that users import.
func get(t *testing.T, env []string, m module.Version) {
	dir := t.TempDir()
	do(t, dir, env, "go", "mod", "init", "example.com/user")
	packages := m.Path
	if m.Path == root {
		packages += "/..."
	}
	do(t, dir, env, "go", "get", packages+"@"+m.Version)
	do(t, dir, env, "go", "build", "-o", os.DevNull, packages)
	if mod := read(t, dir, "go.mod"); !strings.Contains(mod, m.Path+" "+m.Version) {
		t.Errorf("go get %v: %s", m, mod)
	}
}

// proxy makes a module proxy of files with the modules that tags name, as the Go command makes
// modules of a repository's tags.
func proxy(t *testing.T, dir string, tags []string) string {
	t.Helper()
	proxy := t.TempDir()
	for _, tag := range tags {
		sub := strings.Trim(strings.TrimSuffix(tag, version), "/")
		m := module.Version{Path: strings.TrimSuffix(root+"/"+sub, "/"), Version: version}
		at := filepath.Join(proxy, filepath.FromSlash(m.Path), "@v")
		write(t, filepath.Join(at, "list"), version+"\n")
		write(t, filepath.Join(at, version+".info"), fmt.Sprintf("{\"Version\":%q,\"Time\":%q}\n", version, "2026-12-31T23:59:00Z"))
		write(t, filepath.Join(at, version+".mod"), do(t, dir, nil, "git", "show", tag+":"+strings.TrimPrefix(sub+"/go.mod", "/")))
		f, err := os.Create(filepath.Join(at, version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		if err := zip.CreateFromVCS(f, m, dir, tag, sub); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if checked, err := zip.CheckZip(m, f.Name()); err != nil || checked.Err() != nil {
			t.Fatal(err, checked.Err())
		}
	}
	return proxy
}

// newUser returns the environment of a Go installation that has no module yet, and the directory
// for commands. Modules come from the proxy, others from this machine's module cache if they are
// there. Their hashes were compared with go.sum when they came into that cache, so that no network
// is needed. -trimpath makes the packages that the build cache has valid for the new directories.
func newUser(t *testing.T, proxy string) (env []string, bin string) {
	t.Helper()
	own := strings.Split(strings.TrimSpace(do(t, ".", nil, "go", "env", "GOMODCACHE", "GOPROXY")), "\n")
	file := func(dir string) string {
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()
	}
	bin = t.TempDir()
	return []string{
		"GOWORK=off", "GOSUMDB=off", "GONOPROXY=", "GOPRIVATE=", "GOFLAGS=-trimpath -modcacherw", "GOBIN=" + bin, "GOMODCACHE=" + t.TempDir(),
		"GOPROXY=" + file(proxy) + "," + file(filepath.Join(own[0], "cache", "download")) + "," + own[1],
	}, bin
}

// shell returns the commands of the first shell block below a heading, and fails if there is none.
func shell(t *testing.T, page, heading string) string { return block(t, page, heading, "sh") }

// block returns the first block of code in a language below a heading of a page.
func block(t *testing.T, page, heading, language string) string {
	t.Helper()
	_, rest, _ := strings.Cut(page, "\n"+heading+"\n")
	m := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```").FindStringSubmatch(rest)
	if m == nil {
		t.Fatalf("no block of %s below %q", language, heading)
	}
	return m[1]
}
