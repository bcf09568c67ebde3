package archtest

import (
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTree holds the tree that we are in to the rules.
func TestTree(t *testing.T) {
	pkgs, err := load(os.DirFS("../.."))
	require.NoError(t, err)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, p := range pkgs {
				for _, line := range rule(p) {
					t.Error(line)
				}
			}
		})
	}
}

// TestFloors holds the table itself to its rule: what a room lists lies below it.
func TestFloors(t *testing.T) {
	for floor, rooms := range floors {
		for _, r := range rooms {
			for _, name := range r.may {
				base := strings.TrimSuffix(name, "/...")
				_, below, ok := find(base)
				parent := strings.HasPrefix(r.name, base+"/")
				switch {
				case name == "...":
				case !ok:
					t.Errorf("%s may import %s, which is in no room", r.name, name)
				case below >= floor && floor > 0 && !parent:
					t.Errorf("%s on floor %d may import %s on floor %d", r.name, floor, name, below)
				}
			}
		}
	}
}

// TestRules breaks each rule once, in a tree that keeps the others.
func TestRules(t *testing.T) {
	const (
		wire  = "// Package wire is bytes.\npackage wire\n"
		store = "// Package store is a place.\npackage store\n"
		core  = "// Package core is a machine.\npackage core\n"
	)
	for name, tc := range map[string]struct {
		files map[string]string
		want  []string // in the lines, in order; none: all is well
	}{
		"down":         {files: map[string]string{"store/a.go": store + `import _ "` + module + `/wire"`}},
		"subpackage":   {files: map[string]string{"cmd/muster/page/a.go": "// Package page.\npackage page\nimport _ `" + module + "/store`"}},
		"test imports": {files: map[string]string{"wire/a.go": wire, "wire/a_test.go": "package wire_test\nimport _ `" + module + "/pgroup/pgrouptest`"}},
		"up": {
			files: map[string]string{"wire/a.go": wire + `import _ "` + module + `/store"`},
			want:  []string{"wire/a.go:3: wire must not import store: floor 1 is above floor 0"},
		},
		"up by a pattern": {
			files: map[string]string{"internal/testcluster/a.go": "// Package testcluster.\npackage testcluster\nimport _ `" + module + "/store/etcdlog`"},
			want:  []string{"internal/testcluster must not import store/etcdlog: floor 6 is above floor 3"},
		},
		"sideways": {
			files: map[string]string{"store/a.go": store + `import _ "` + module + `/shm"`},
			want:  []string{"store/a.go:3: store must not import shm, only [wire "},
		},
		"core lists less than its floor": {
			files: map[string]string{"internal/core/a.go": core + `import _ "` + module + `/trace"`},
			want:  []string{"internal/core must not import trace, only [wire internal/reduce tensor]"},
		},
		"no room": {
			files: map[string]string{"util/a.go": "// Package util is anything.\npackage util"},
			want:  []string{"util is in no room"},
		},
		"import of no room": {
			files: map[string]string{"cmd/muster/a.go": "// Muster.\npackage main\nimport _ `" + module + "/util`"},
			want:  []string{"cmd/muster/a.go:3: cmd/muster imports util, which is in no room"},
		},
		"impure on another platform": {
			files: map[string]string{"internal/core/a.go": "//go:build plan9\n\n" + core + "import (\n_ \"sync/atomic\"\n_ \"net/netip\"\n)"},
			want:  []string{"a.go:6: internal/core is pure and must not import sync/atomic", "import net/netip"},
		},
		"clock": {
			files: map[string]string{"internal/core/a.go": core + "import clock \"time\"\nvar now, d = clock.Now, clock.Second"},
			want:  []string{"a.go:4: internal/core is pure and takes the time as an argument"},
		},
		"goroutine": {
			files: map[string]string{"internal/core/a.go": core + "func f() {\n\tgo f()\n}"},
			want:  []string{"a.go:4: internal/core is pure and must not start goroutines"},
		},
		"no comment": {
			files: map[string]string{"wire/a.go": "//go:build linux\npackage wire", "wire/a_test.go": wire},
			want:  []string{"wire has no package comment"},
		},
		"two comments": {
			files: map[string]string{"wire/a.go": wire, "wire/b.go": wire},
			want:  []string{"wire has 2 package comments, in [wire/a.go wire/b.go]"},
		},
		"long": {
			files: map[string]string{"wire/a.go": wire + strings.Repeat("\n", maxLines)},
			want:  []string{"wire/a.go has 502 lines, more than 500"},
		},
		"testing shipped": {
			files: map[string]string{"wire/a.go": wire + `import _ "testing"`},
			want:  []string{"wire/a.go:3: wire is no test package and must not import testing"},
		},
		"test package shipped": {
			files: map[string]string{"cmd/muster/a.go": "// Muster.\npackage main\nimport _ `" + module + "/internal/storetest`"},
			want:  []string{"cmd/muster is no test package and must not import " + module + "/internal/storetest"},
		},
		"test package": {files: map[string]string{"internal/storetest/a.go": "// Package storetest tests.\npackage storetest\nimport _ `testing`"}},
		"sleep": {
			files: map[string]string{"wire/a.go": wire, "wire/a_test.go": "package wire\nimport \"time\"\nfunc f() { time.Sleep(1) }"},
			want:  []string{"wire/a_test.go:3: time.Sleep in a test"},
		},
		"sleep in a bubble of a function's": {files: map[string]string{
			"wire/a.go":      wire,
			"wire/a_test.go": "package wire\nimport (\"time\";\"testing/synctest\")\nfunc b(f func()) { synctest.Test(nil, f) }\nfunc g() { b(func() { time.Sleep(1) }) }",
		}},
		"sleep in a bubble": {files: map[string]string{
			"wire/a.go":      wire,
			"wire/a_test.go": "package wire\nimport (\"time\";\"testing/synctest\")\nfunc f() { synctest.Test(nil, func() { time.Sleep(1) }) }",
		}},
		"ignored": {files: map[string]string{"testdata/a.go": "package a", ".x/a.go": "package a", "_x/a.go": "package a"}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, tree(tc.files), tc.want) })
	}
}

func tree(files map[string]string) fs.FS {
	fsys := fstest.MapFS{}
	for name, src := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(src)}
	}
	return fsys
}

func expect(t *testing.T, fsys fs.FS, want []string) {
	t.Helper()
	pkgs, err := load(fsys)
	require.NoError(t, err)
	var got []string
	for _, p := range pkgs {
		for _, rule := range rules {
			got = append(got, rule(p)...)
		}
	}
	require.Len(t, got, len(want), "got %q, want %q", got, want)
	for i := range want {
		assert.Contains(t, got[i], want[i])
	}
}
