package docs_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// TestGoCodeOfTheDocs requires that each block of Go in README.md and docs/ is in a Go file of this repository, apart from its
// indentation, so that the compiler has seen it. A whole program is run by TestGettingStarted of cmd/muster.
func TestGoCodeOfTheDocs(t *testing.T) {
	root := os.DirFS("../../../..")
	var code strings.Builder
	pages := map[string]string{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && name != "." && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return err
		}
		isDoc := name == "README.md" || strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md")
		if !isDoc && !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if isDoc {
			pages[name] = string(text)
		} else {
			code.WriteString(flat(string(text)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for name, text := range pages {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			blocks++
			if !strings.HasPrefix(m[1], "package main\n") && !strings.Contains(code.String(), flat(m[1])) {
				t.Errorf("%s shows code that is in no test file:\n%s", name, m[1])
			}
		}
	}
	if blocks < 15 {
		t.Errorf("only %d blocks were found", blocks)
	}
}

// flat is code without the indentation of its lines, and without the spaces that align comments.
func flat(code string) string {
	var b strings.Builder
	for l := range strings.Lines(code) {
		b.WriteString(strings.Join(strings.Fields(l), " ") + "\n")
	}
	return b.String()
}
