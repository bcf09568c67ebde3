package archtest

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// rules say what a package breaks, a line for each place.
var rules = map[string]func(*pkg) []string{
	"imports": checkImports,
	"purity":  checkPurity,
	"testing": checkTesting,
	"sleep":   checkSleep,
	"skip":    checkSkip,
}

// checkImports wants a package to import only what the table lists.
func checkImports(p *pkg) (broken []string) {
	may, ok := mayImport(p.dir)
	if !ok {
		return []string{p.dir + " is not in the table: list what it may import in internal/archtest/imports_test.go"}
	}
	for _, f := range p.shipped() {
		for pos, name := range f.imports {
			if dir, ours := strings.CutPrefix(name, module+"/"); ours && !match(dir, may...) {
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s, only %v", p.at(pos), p.dir, dir, may))
			}
		}
	}
	return broken
}

// checkPurity wants a pure package free of whatever makes one run differ from the next.
func checkPurity(p *pkg) (broken []string) {
	if !slices.Contains(pure, p.dir) {
		return nil
	}
	for _, f := range p.shipped() {
		for pos, name := range f.imports {
			if match(name, impure...) {
				broken = append(broken, fmt.Sprintf("%s: %s is pure and must not import %s", p.at(pos), p.dir, name))
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if _, ok := n.(*ast.GoStmt); ok {
				broken = append(broken, fmt.Sprintf("%s: %s is pure and must not start goroutines", p.at(n.Pos()), p.dir))
			}
			if f.selects(n, "time", clocks...) {
				broken = append(broken, fmt.Sprintf("%s: %s is pure and takes the time as an argument", p.at(n.Pos()), p.dir))
			}
			return true
		})
	}
	return broken
}

// checkTesting wants no test code in what users link.
func checkTesting(p *pkg) (broken []string) {
	if isTestPackage(p.dir) {
		return nil
	}
	for _, f := range p.shipped() {
		for pos, name := range f.imports {
			dir, ours := strings.CutPrefix(name, module+"/")
			if match(name, "testing/...") || ours && isTestPackage(dir) {
				broken = append(broken, fmt.Sprintf("%s: %s is no test package and must not import %s", p.at(pos), p.dir, name))
			}
		}
	}
	return broken
}

// checkSleep wants tests to wait for what they need. In a synctest bubble, where time is
// not real, sleeping is how time passes; so is it in what is given to a function that makes one.
func checkSleep(p *pkg) (broken []string) {
	makesBubble := map[string]bool{}
	for _, f := range p.files {
		for _, d := range f.tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && callsBubble(f, fn) {
				makesBubble[fn.Name.Name] = true
			}
		}
	}
	for _, f := range p.files {
		if !f.test {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				name, _ := call.Fun.(*ast.Ident)
				if f.selects(call.Fun, "testing/synctest", "Test") || name != nil && makesBubble[name.Name] {
					return false
				}
			}
			if f.selects(n, "time", "Sleep") {
				broken = append(broken, p.at(n.Pos())+": time.Sleep in a test: wait for the event")
			}
			return true
		})
	}
	return broken
}

// checkSkip wants a test that is skipped to say so, and why.
func checkSkip(p *pkg) (broken []string) {
	for _, f := range p.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			fn, _ := call.Fun.(*ast.SelectorExpr)
			text, _ := call.Args[0].(*ast.BasicLit)
			if fn != nil && text != nil && strings.HasPrefix(fn.Sel.Name, "Skip") && !strings.HasPrefix(text.Value, `"SKIPPED: `) {
				broken = append(broken, p.at(n.Pos())+`: begin with "SKIPPED: ", and say what is missing`)
			}
			return true
		})
	}
	return broken
}

func callsBubble(f file, fn *ast.FuncDecl) (yes bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && f.selects(call.Fun, "testing/synctest", "Test") {
			yes = true
		}
		return !yes
	})
	return yes
}
