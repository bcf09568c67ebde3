package archtest

import (
	"fmt"
	"go/doc"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// roomsPage has the table of rooms, between the two marks.
const (
	roomsPage = "../../docs/explanation/architecture.md"
	roomsFrom = "<!-- rooms: MUSTER_GOLDEN=write go test ./internal/archtest -run Rooms -->\n"
	roomsTo   = "<!-- end of rooms -->\n"
)

// TestRooms checks that the page's table of the packages of the root module is that of their imports and
// comments. A package is one level above the highest that it imports.
func TestRooms(t *testing.T) {
	root := os.DirFS("../..")
	all, err := load()
	require.NoError(t, err)
	pkgs := map[string]*pkg{}
	for _, p := range all {
		if inRootModule(root, p.dir) && !isTestPackage(p.dir) && len(p.shipped()) > 0 && !match(p.dir, "internal/archtest", "examples/...") {
			pkgs[p.dir] = p
		}
	}
	level := map[string]int{}
	var levelOf func(dir string) int
	levelOf = func(dir string) int {
		if n, known := level[dir]; known {
			return n
		}
		n := 0
		for _, f := range pkgs[dir].shipped() {
			for _, name := range f.imports {
				if of, ours := strings.CutPrefix(name, module+"/"); ours && pkgs[of] != nil {
					n = max(n, levelOf(of)+1)
				}
			}
		}
		level[dir] = n
		return n
	}
	var dirs []string
	for dir := range pkgs {
		levelOf(dir)
		dirs = append(dirs, dir)
	}
	slices.SortFunc(dirs, func(a, b string) int {
		if level[a] != level[b] {
			return level[b] - level[a]
		}
		return strings.Compare(a, b)
	})
	var table strings.Builder
	table.WriteString("| level | package | |\n|---|---|---|\n")
	for i, dir := range dirs {
		at := ""
		if i == 0 || level[dir] != level[dirs[i-1]] {
			at = fmt.Sprint(level[dir])
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", at, dir, pkgs[dir].synopsis())
	}
	text, err := os.ReadFile(roomsPage)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), roomsFrom)
	_, after, ends := strings.Cut(rest, roomsTo)
	require.True(t, ok && ends, "the page has no place for the table")
	want := before + roomsFrom + table.String() + roomsTo + after
	if os.Getenv("MUSTER_GOLDEN") == "write" {
		require.NoError(t, os.WriteFile(roomsPage, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "imports or package comments have changed: MUSTER_GOLDEN=write go test ./internal/archtest -run Rooms")
}

// inRootModule reports whether no go.mod lies between the root and dir.
func inRootModule(root fs.FS, dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := fs.Stat(root, path.Join(dir, "go.mod")); err == nil {
			return false
		}
	}
	return true
}

// synopsis returns the first sentence of the package comment, without the name of the package.
func (p *pkg) synopsis() string {
	for _, f := range p.shipped() {
		if f.tree.Doc != nil {
			text := new(doc.Package).Synopsis(f.tree.Doc.Text())
			return strings.TrimPrefix(text, "Package "+f.tree.Name.Name+" ")
		}
	}
	return ""
}
