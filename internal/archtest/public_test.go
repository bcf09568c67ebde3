package archtest

import (
	"go/doc"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var publicRow = regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\| .+ \\| \\[.+\\]\\((.+)\\) \\|$")

// TestPublicPackages compares the table of CONTRIBUTING.md with the root module: each public package has
// a row, an Example, and a page that names it.
func TestPublicPackages(t *testing.T) {
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	require.NoError(t, err)
	pages := map[string]string{}
	for _, m := range publicRow.FindAllStringSubmatch(string(text), -1) {
		pages[m[1]] = m[2]
	}
	pkgs, err := load()
	require.NoError(t, err)
	for _, p := range pkgs {
		if !public(p.dir) {
			continue
		}
		page, ok := pages[p.dir]
		delete(pages, p.dir)
		if !assert.True(t, ok, "CONTRIBUTING.md gives no reason why %s is public", p.dir) {
			continue
		}
		b, err := os.ReadFile(path.Join("../..", page))
		require.NoError(t, err)
		assert.Regexp(t, `\b`+path.Base(p.dir)+`\b`, string(b), "%s is to describe %s", page, p.dir)
		assert.NotEmpty(t, doc.Examples(p.trees()...), "%s has no Example", p.dir)
	}
	assert.Empty(t, pages, "packages of CONTRIBUTING.md that are not public, or not there")
}

// public reports whether programs can import the package in dir, of the root module.
func public(dir string) bool {
	for _, other := range []string{"internal", "cmd", "examples", "bench", "clients", "integration", "telemetry", "tools", "store/etcdlog"} {
		if dir == other || strings.HasPrefix(dir, other+"/") || strings.Contains(dir, "/internal/") {
			return false
		}
	}
	return true
}
