package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// root is the path of the module in the root directory. Those of the other modules are their
// directories below it.
const root = "github.com/muster-pg/muster"

// Published lists the directories of the modules that users can get and install, dependencies
// first. The other modules of the workspace are never published.
var Published = []string{"proctest", ".", "trace/otel", "trace/prom", "status/metrics", "store/etcdlog", "cmd/muster"}

// changelog is the file whose section Unreleased a release dates.
const changelog = "CHANGELOG.md"

// chart is the file that has the version of the Helm chart, and, as its appVersion, the image's tag.
const chart = "deploy/helm/muster/Chart.yaml"

const unreleased = "## [Unreleased]\n"

// Places in files, beside go.mod and go.work, that have the version.
var (
	workReplace  = regexp.MustCompile(`(?m)^(\s*(?:replace )?` + regexp.QuoteMeta(root) + `\S*) v\S+ =>`)
	pyVersion    = regexp.MustCompile(`(?m)^__version__ = ".*"$`)
	image        = regexp.MustCompile(`(?m)^(\s*(?:- )?image: (?:\S+/)?muster)(?::\S*)?$`)
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
	untilTagged  = regexp.MustCompile(`(?ms)^<!-- unreleased -->\n.*?^<!-- /unreleased -->\n\n?`)
)

// forms are the versions that Python has a form of, too. Module paths without /v2 end at v1.
var forms = regexp.MustCompile(`^v([01]\.\d+\.\d+)(?:-(rc)\.(\d+))?$`)

// Prepare sets version in all files of the repository in dir, and returns the tags of the release.
// If it returns an error, it has changed no file.
func Prepare(dir, version string, now time.Time) (tags []string, err error) {
	m := forms.FindStringSubmatch(version)
	if m == nil || !semver.IsValid(version) {
		return nil, fmt.Errorf("release: version %q: it is none of the form v0.1.0 or v0.1.0-rc.1", version)
	}
	python := m[1] + m[2] + m[3] // as PEP 440 has it: 0.1.0rc1
	for _, mod := range Published {
		tags = append(tags, path.Join(mod, version))
	}
	if err := checkRepository(dir, version, tags); err != nil {
		return nil, err
	}
	e := &edits{dir: dir, files: map[string]string{}}
	e.modules(version)
	e.set("clients/python/muster_pg/_version.py", pyVersion, fmt.Sprintf("__version__ = %q", python))
	e.each("deploy/kubernetes/*.yaml", image, "${1}:"+version)
	e.set(chart, chartVersion, "version: "+strings.TrimPrefix(version, "v"))
	e.set(chart, appVersion, "appVersion: "+version)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "clients/python/*.md"} {
		e.each(pattern, untilTagged, "")
	}
	e.changelog(version, now)
	if e.err != nil {
		return nil, e.err
	}
	return tags, e.write()
}

// checkRepository returns an error if the repository has changes that are not committed, if a tag
// exists, or if version is not above the latest one.
func checkRepository(dir, version string, tags []string) error {
	status, err := git(dir, "status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("release: the working tree has changes: commit them first:\n%s", status)
	}
	list, err := git(dir, "tag", "--list")
	if err != nil {
		return err
	}
	for tag := range strings.FieldsSeq(list) {
		switch {
		case slices.Contains(tags, tag):
			return fmt.Errorf("release: version %s: the tag %s exists: choose the next version", version, tag)
		case semver.IsValid(tag) && semver.Compare(tag, version) > 0:
			return fmt.Errorf("release: version %s: it is lower than %s, which has been released", version, tag)
		}
	}
	return nil
}

func git(dir string, args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("release: git %s: %w: %s", args[0], err, e.Stderr)
	}
	return string(out), err
}

// edits has the files that change, by name, and the first error.
type edits struct {
	dir   string
	files map[string]string
	err   error
}

func (e *edits) fail(format string, args ...any) {
	e.err = cmp.Or(e.err, fmt.Errorf("release: "+format, args...))
}

// read returns the file called name, with the changes made so far.
func (e *edits) read(name string) string {
	if text, ok := e.files[name]; ok {
		return text
	}
	text, err := os.ReadFile(filepath.Join(e.dir, filepath.FromSlash(name)))
	if err != nil {
		e.fail("%w", err)
	}
	return string(text)
}

// set replaces the one place that matches re in a file.
func (e *edits) set(name string, re *regexp.Regexp, by string) {
	text := e.read(name)
	if n := len(re.FindAllString(text, -1)); n != 1 {
		e.fail("%s: %d lines match %s: want one", name, n, re)
	}
	e.files[name] = re.ReplaceAllString(text, by)
}

// each replaces all places that match re in the files of a pattern.
func (e *edits) each(pattern string, re *regexp.Regexp, by string) {
	names, err := filepath.Glob(filepath.Join(e.dir, filepath.FromSlash(pattern)))
	if err != nil || len(names) == 0 {
		e.fail("%s: no file matches this pattern", pattern)
	}
	for _, name := range names {
		rel, err := filepath.Rel(e.dir, name)
		if err != nil {
			e.fail("%w", err)
		}
		rel = filepath.ToSlash(rel)
		if text := e.read(rel); re.MatchString(text) {
			e.files[rel] = re.ReplaceAllString(text, by)
		}
	}
}

// modules sets the version in go.work, and in the requirements of all modules that it lists.
func (e *edits) modules(version string) {
	text := e.read("go.work")
	work, err := modfile.ParseWork("go.work", []byte(text), nil)
	if err != nil {
		e.fail("%w", err)
		return
	}
	e.files["go.work"] = workReplace.ReplaceAllString(text, "${1} "+version+" =>")
	for _, use := range work.Use {
		dir := path.Clean(use.Path)
		name := path.Join(dir, "go.mod")
		mod, err := modfile.Parse(name, []byte(e.read(name)), nil)
		if err != nil {
			e.fail("%w", err)
			return
		}
		if want := path.Join(root, dir); mod.Module.Mod.Path != want {
			e.fail("%s: module %s: want %s", name, mod.Module.Mod.Path, want)
		}
		published := slices.Contains(Published, dir)
		if published && len(mod.Replace)+len(mod.Exclude) > 0 {
			e.fail("%s: a published module has a replace or exclude directive: it cannot be installed", name)
		}
		for _, r := range mod.Require {
			sub, ours := strings.CutPrefix(r.Mod.Path+"/", root+"/")
			if !ours {
				continue
			}
			if published && !slices.Contains(Published, path.Clean(sub)) {
				e.fail("%s: a published module requires %s, which is not", name, r.Mod.Path)
			}
			if err := mod.AddRequire(r.Mod.Path, version); err != nil {
				e.fail("%s: %w", name, err)
			}
		}
		e.files[name] = string(modfile.Format(mod.Syntax))
	}
}

// changelog makes the section Unreleased that of version, and begins a new one.
func (e *edits) changelog(version string, now time.Time) {
	text := e.read(changelog)
	number := strings.TrimPrefix(version, "v")
	if strings.Contains(text, "\n## ["+number+"]") {
		e.fail("%s: it has a section %s: choose the next version", changelog, number)
	}
	if notes, err := section(text, unreleased); err != nil || strings.TrimSpace(notes) == "" {
		e.fail("%s: the section Unreleased is missing or empty", changelog)
	}
	dated := fmt.Sprintf("%s\n## [%s] - %s\n", unreleased, number, now.UTC().Format(time.DateOnly))
	e.files[changelog] = strings.Replace(text, unreleased, dated, 1)
}

func (e *edits) write() error {
	for name, text := range e.files {
		if err := os.WriteFile(filepath.Join(e.dir, filepath.FromSlash(name)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Notes returns the section of version in the text of CHANGELOG.md, without its heading.
func Notes(text, version string) (string, error) {
	return section(text, "## ["+strings.TrimPrefix(version, "v")+"]")
}

// section returns the text between the heading and the next heading of its level.
func section(text, heading string) (string, error) {
	_, rest, ok := strings.Cut("\n"+text, "\n"+heading)
	if !ok {
		return "", fmt.Errorf("release: %s: it has no section %s", changelog, strings.TrimSpace(heading))
	}
	if !strings.HasSuffix(heading, "\n") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	notes, _, _ := strings.Cut(rest, "\n## ")
	return strings.TrimSpace(notes) + "\n", nil
}

// Instructions returns what to do after Prepare.
func Instructions(version string, tags []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s is prepared, and nothing is committed. Look at the changes (git diff), then:\n", version)
	fmt.Fprintf(&b, "git commit -am 'release: %s'\n", version)
	for _, tag := range tags {
		fmt.Fprintf(&b, "git tag -a -m %s %s\n", version, tag)
	}
	fmt.Fprintf(&b, "git push --atomic origin HEAD %s\n", strings.Join(tags, " "))
	return b.String()
}
