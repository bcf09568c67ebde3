package archtest

import (
	"fmt"
	"go/ast"
	"strings"
)

// rules say what a package breaks, a line for each place.
var rules = map[string]func(*pkg) []string{
	"floors":  checkFloors,
	"purity":  checkPurity,
	"comment": checkComment,
	"length":  checkLength,
	"testing": checkTesting,
	"sleep":   checkSleep,
}

// checkFloors wants imports of ours to point down, to what the package's room lists.
func checkFloors(p *pkg) (broken []string) {
	from, floor, ok := find(p.dir)
	if !ok {
		return []string{p.dir + " is in no room: give it a floor in internal/archtest/floors_test.go"}
	}
	for _, f := range p.shipped() {
		for pos, name := range f.imports {
			dir, ours := strings.CutPrefix(name, module+"/")
			if !ours {
				continue
			}
			switch _, below, known := find(dir); {
			case !known:
				broken = append(broken, fmt.Sprintf("%s: %s imports %s, which is in no room", p.at(pos), p.dir, dir))
			case below > floor:
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s: floor %d is above floor %d", p.at(pos), p.dir, dir, below, floor))
			case from.may != nil && !match(dir, from.may...):
				broken = append(broken, fmt.Sprintf("%s: %s must not import %s, only %v", p.at(pos), p.dir, dir, from.may))
			}
		}
	}
	return broken
}

// checkPurity wants a pure room free of whatever makes one run differ from the next.
func checkPurity(p *pkg) (broken []string) {
	if r, _, _ := find(p.dir); !r.pure {
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

// checkComment wants one package comment, so that no file hides a second.
func checkComment(p *pkg) []string {
	files := p.shipped()
	var with []string
	for _, f := range files {
		if f.tree.Doc.Text() != "" {
			with = append(with, f.name)
		}
	}
	switch {
	case len(files) > 0 && len(with) == 0:
		return []string{p.dir + " has no package comment"}
	case len(with) > 1:
		return []string{fmt.Sprintf("%s has %d package comments, in %v: keep one", p.dir, len(with), with)}
	}
	return nil
}

func checkLength(p *pkg) (broken []string) {
	for _, f := range p.shipped() {
		if f.lines > maxLines {
			broken = append(broken, fmt.Sprintf("%s has %d lines, more than %d: split it by what it does", f.name, f.lines, maxLines))
		}
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

func callsBubble(f file, fn *ast.FuncDecl) (yes bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && f.selects(call.Fun, "testing/synctest", "Test") {
			yes = true
		}
		return !yes
	})
	return yes
}
