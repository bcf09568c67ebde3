package archtest

import (
	"go/ast"
	"go/doc"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestVerbsHaveExamples holds package pgroup to what the README says: each verb, a function or method that takes a context, has an example that
// go test runs.
func TestVerbsHaveExamples(t *testing.T) {
	pkgs, err := load()
	require.NoError(t, err)
	p := pkgs[slices.IndexFunc(pkgs, func(p *pkg) bool { return p.dir == "pgroup" })]
	d, err := doc.NewFromFiles(p.fset, p.trees(), module+"/pgroup", doc.PreserveAST) // which other tests read, too
	require.NoError(t, err)
	funcs := d.Funcs
	for _, typ := range d.Types {
		funcs = append(append(funcs, typ.Funcs...), typ.Methods...)
	}
	verbs := 0
	for _, f := range funcs {
		if !takesContext(f.Decl) {
			continue
		}
		verbs++
		if !slices.ContainsFunc(f.Examples, func(e *doc.Example) bool { return e.Output != "" }) {
			t.Errorf("%s has no example with output", strings.TrimPrefix(strings.Trim(f.Recv, "*")+"."+f.Name, "."))
		}
	}
	assert.NotZero(t, verbs, "no verb was found")
}

func takesContext(f *ast.FuncDecl) bool {
	if f.Type.Params.NumFields() == 0 {
		return false
	}
	sel, ok := f.Type.Params.List[0].Type.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Context"
}
