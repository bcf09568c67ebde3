package archtest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// maxColumns is the length of the longest line of Markdown that is not a row of a table.
const maxColumns = 100

// A page is one Markdown file.
type page struct {
	path    string // from the root of the repository, with slashes
	lines   []string
	code    []bool // for each line: it is in a block of code
	anchors map[string]bool
}

var (
	link     = regexp.MustCompile(`!?\[[^\]]*\]\(([^)\s]+)\)`)
	onGitHub = regexp.MustCompile(`https://github\.com/muster-pg/muster/(?:blob|tree)/main/([\w./-]+)(?:#([\w-]+))?`)
	codeSpan = regexp.MustCompile("`[^`]*`")
	named    = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z0-9]\\w*)[`/]")
	runs     = regexp.MustCompile(`\b(Test[A-Z]\w+)`) // in a script
	scenario = regexp.MustCompile("`([a-z_]+\\.txt)`")
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
)

// TestDocsLines limits the length of lines in Markdown files. A row of a table cannot wrap.
func TestDocsLines(t *testing.T) {
	for _, p := range pages(t) {
		for i, l := range p.lines {
			if n := utf8.RuneCountInString(l); n > maxColumns && !strings.HasPrefix(l, "|") {
				t.Errorf("%s:%d has %d columns, more than %d", p.path, i+1, n, maxColumns)
			}
		}
	}
}

// TestDocsLinks resolves relative links of Markdown files, and absolute ones of all files to files of this
// repository, as an index of packages needs them: the file exists, and it has the anchor.
func TestDocsLinks(t *testing.T) {
	byPath := map[string]page{}
	for _, p := range pages(t) {
		byPath[p.path] = p
	}
	resolves := func(from, to, anchor string) {
		info, err := os.Stat(filepath.Join("../..", to))
		if err != nil {
			t.Errorf("%s links to %s, which does not exist", from, to)
			return
		}
		if info.IsDir() {
			to = path.Join(to, "README.md") // which is what GitHub shows
		}
		if target, ok := byPath[to]; anchor != "" && anchor != "readme" && (!ok || !target.anchors[anchor]) {
			t.Errorf("%s links to %s, which has no heading #%s", from, to, anchor)
		}
	}
	for _, p := range byPath {
		for _, m := range link.FindAllStringSubmatch(p.prose(), -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			switch {
			case strings.Contains(file, "://"):
			case file == "":
				resolves(p.path, p.path, anchor)
			default:
				resolves(p.path, path.Join(path.Dir(p.path), file), anchor)
			}
		}
	}
	for _, suffix := range []string{".md", ".py", ".toml"} {
		walk(t, suffix, func(name, text string) {
			for _, m := range onGitHub.FindAllStringSubmatch(text, -1) {
				resolves(name, m[1], m[2])
			}
		})
	}
}

// TestDocsNameScenarios requires that the scenarios that the pages about rules and errors name exist, and
// that the page about rules or the one about errors names each.
func TestDocsNameScenarios(t *testing.T) {
	const dir = "internal/scenario/testdata/"
	unnamed := map[string]bool{}
	walk(t, ".txt", func(name, _ string) {
		if rest, ok := strings.CutPrefix(name, dir); ok {
			unnamed[rest] = true
		}
	})
	for _, name := range []string{"docs/explanation/guarantees.md", "docs/reference/errors.md"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		for _, m := range scenario.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join("../..", dir, m[1])); err != nil {
				t.Errorf("%s names the scenario %s, which does not exist", name, m[1])
			}
			delete(unnamed, m[1])
		}
	}
	assert.Empty(t, unnamed, "scenarios that no page names")
}

// TestDocsNameTests requires that each test exists that a Markdown file names in code, or that CI and
// the Makefile run. A name that ends in … is a prefix of several.
func TestDocsNameTests(t *testing.T) {
	exists := map[string]bool{}
	walk(t, "_test.go", func(_, text string) {
		for _, m := range declared.FindAllStringSubmatch(text, -1) {
			exists[m[1]] = true
		}
	})
	for _, p := range pages(t) {
		if p.path == "CHANGELOG.md" {
			continue // it names tests as they were
		}
		for i, l := range p.lines {
			for _, m := range named.FindAllStringSubmatch(l, -1) {
				if !exists[m[1]] {
					t.Errorf("%s:%d names %s, which does not exist", p.path, i+1, m[1])
				}
			}
		}
	}
	for _, name := range []string{".ci/run", "Makefile"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		require.NoError(t, err)
		for _, m := range runs.FindAllStringSubmatch(string(text), -1) {
			if !exists[m[1]] {
				t.Errorf("%s runs %s, which does not exist", name, m[1])
			}
		}
	}
}

// prose is the text of p without its code; line ends are spaces, since the text of a link may wrap.
func (p page) prose() string {
	var b strings.Builder
	for i, l := range p.lines {
		if !p.code[i] {
			b.WriteString(l + " ")
		}
	}
	return codeSpan.ReplaceAllString(b.String(), "`x`")
}

// pages returns all Markdown files of the repository.
func pages(t *testing.T) (all []page) {
	t.Helper()
	walk(t, ".md", func(name, text string) {
		p := page{path: name, lines: strings.Split(text, "\n"), anchors: map[string]bool{}}
		code := false
		for _, l := range p.lines {
			fence := strings.HasPrefix(strings.TrimSpace(l), "```")
			p.code = append(p.code, code || fence)
			if fence {
				code = !code
			}
			if title := strings.TrimLeft(l, "#"); !code && title != l && strings.HasPrefix(title, " ") {
				p.anchors[slug(title)] = true
			}
		}
		assert.False(t, code, "%s ends in a block of code", name)
		all = append(all, p)
	})
	assert.NotEmpty(t, all, "no Markdown file was found")
	return all
}

// slug is the anchor that GitHub and MkDocs make of a heading.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(title))
}

// walk calls f with each file of the repository whose name ends in suffix.
func walk(t *testing.T, suffix string, f func(name, text string)) {
	t.Helper()
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "site"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, suffix):
			return nil
		}
		text, err := fs.ReadFile(root, name)
		f(name, string(text))
		return err
	})
	require.NoError(t, err)
}
