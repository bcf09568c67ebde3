package docs_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var block = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// TestGoCodeOfTheDocs checks that each Go block in README.md and docs/ occurs, apart from its
// indentation, in a test file or an example of this repository, so that it is compiled. TestGettingStarted
// of cmd/muster runs the complete programs.
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
		if !isDoc && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "examples/") {
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
	require.NoError(t, err)
	blocks := 0
	for name, text := range pages {
		for _, m := range block.FindAllStringSubmatch(text, -1) {
			blocks++
			if !strings.Contains(code.String(), flat(m[1])) {
				t.Errorf("%s shows code that is in no test file or example:\n%s", name, m[1])
			}
		}
	}
	assert.GreaterOrEqual(t, blocks, 15)
}

// flat returns code without the indentation of its lines, and without the spaces that align
// comments.
func flat(code string) string {
	var b strings.Builder
	for l := range strings.Lines(code) {
		b.WriteString(strings.Join(strings.Fields(l), " ") + "\n")
	}
	return b.String()
}
