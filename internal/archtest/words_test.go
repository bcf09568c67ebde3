package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkedTexts are the directories whose texts have the words of .vale: string literals of Go files, and Python files as a whole. Vale
// itself checks Markdown files.
var checkedTexts = []string{"cmd/muster", "status", "clients/python/muster_pg", "internal/launch"}

// TestWordsOfTexts compares help texts, errors and other string literals with the words to avoid.
func TestWordsOfTexts(t *testing.T) {
	words := wordsToAvoid(t)
	check := func(at, text string) {
		for _, w := range words {
			if m := w.avoid.FindString(text); m != "" {
				t.Errorf("%s: say %s, not %q: %.60q", at, w.say, m, text)
			}
		}
	}
	for _, suffix := range []string{".go", ".py"} {
		walk(t, suffix, func(name, text string) {
			in := func(dir string) bool { return strings.HasPrefix(name, dir+"/") }
			switch {
			case !slices.ContainsFunc(checkedTexts, in) || strings.HasSuffix(name, "_test.go"):
			case path.Ext(name) == ".py":
				for i, l := range strings.Split(text, "\n") {
					check(name+":"+strconv.Itoa(i+1), l)
				}
			default:
				eachLiteral(t, name, text, check)
			}
		})
	}
}

// eachLiteral calls check with the string literals of a Go file.
func eachLiteral(t *testing.T, name, text string, check func(at, text string)) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, 0)
	require.NoError(t, err)
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil {
				check(fset.Position(lit.Pos()).String(), s)
			}
		}
		return true
	})
}

type word struct {
	avoid *regexp.Regexp
	say   string
}

var swap = regexp.MustCompile(`^  '(.+)': (.+)$`)

// wordsToAvoid reads the substitutions that Vale makes.
func wordsToAvoid(t *testing.T) (words []word) {
	t.Helper()
	text, err := os.ReadFile("../../.vale/styles/Muster/Words.yml")
	require.NoError(t, err)
	for l := range strings.Lines(string(text)) {
		if m := swap.FindStringSubmatch(strings.TrimRight(l, "\n")); m != nil {
			words = append(words, word{regexp.MustCompile("(?i)" + strings.ReplaceAll(m[1], "''", "'")), m[2]})
		}
	}
	require.GreaterOrEqual(t, len(words), 20)
	return words
}
