package python_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLinksOfThePackage checks that the links of what an index shows lead to files of this repository,
// and to their headings. .ci/packages builds the distributions, and installs and uses them.
func TestLinksOfThePackage(t *testing.T) {
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
