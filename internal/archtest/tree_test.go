package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A pkg is the Go files of one directory, read for every platform at once.
type pkg struct {
	dir   string
	fset  *token.FileSet
	files []file
}

type file struct {
	name string // from the root of the tree
	test bool
	tree *ast.File
}

// load parses every Go file of the repository but those that the go command ignores too.
var load = sync.OnceValues(func() ([]*pkg, error) {
	fsys := os.DirFS("../..")
	pkgs := map[string]*pkg{}
	fset := token.NewFileSet()
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch hidden := name != "." && (base[0] == '.' || base[0] == '_'); {
		case err != nil:
			return err
		case d.IsDir() && (hidden || base == "testdata" || base == "vendor"):
			return fs.SkipDir
		case d.IsDir() || hidden || path.Ext(name) != ".go":
			return nil
		}
		f, err := parse(fset, fsys, name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if pkgs[dir] == nil {
			pkgs[dir] = &pkg{dir: dir, fset: fset}
		}
		pkgs[dir].files = append(pkgs[dir].files, f)
		return nil
	})
	byDir := func(a, b *pkg) int { return strings.Compare(a.dir, b.dir) }
	return slices.SortedFunc(maps.Values(pkgs), byDir), err
})

func parse(fset *token.FileSet, fsys fs.FS, name string) (file, error) {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return file{}, err
	}
	tree, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	return file{name: name, test: strings.HasSuffix(name, "_test.go"), tree: tree}, err
}

// trees are the files.
func (p *pkg) trees() (all []*ast.File) {
	for _, f := range p.files {
		all = append(all, f.tree)
	}
	return all
}

// shipped are the files without tests.
func (p *pkg) shipped() []file {
	return slices.DeleteFunc(slices.Clone(p.files), func(f file) bool { return f.test })
}

func (p *pkg) at(pos token.Pos) string {
	at := p.fset.Position(pos)
	return fmt.Sprintf("%s:%d", at.Filename, at.Line)
}

// imports yields the path of each import of f.
func (f file) imports(yield func(token.Pos, string) bool) {
	for _, spec := range f.tree.Imports {
		if name, err := strconv.Unquote(spec.Path.Value); err == nil && !yield(spec.Pos(), name) {
			return
		}
	}
}

// selects reports whether n is one of names, selected from the package at path.
func (f file) selects(n ast.Node, path string, names ...string) bool {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, sel.Sel.Name) {
		return false
	}
	x, ok := sel.X.(*ast.Ident)
	return ok && x.Name == f.nameOf(path)
}

// nameOf returns the name under which f imports path, or "" if it does not.
func (f file) nameOf(importPath string) string {
	for _, spec := range f.tree.Imports {
		if spec.Path.Value == strconv.Quote(importPath) {
			if spec.Name != nil {
				return spec.Name.Name
			}
			return path.Base(importPath)
		}
	}
	return ""
}
