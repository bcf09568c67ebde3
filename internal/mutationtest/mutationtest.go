// Package mutationtest breaks a rule in a copy of a source file, and shows that a test notices.
package mutationtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// counterexample is what a test prints that has found one.
var counterexample = regexp.MustCompile(`(?m)([A-Z][0-9] .*) does not hold: (.*)$`)

// Noticed runs "go test" with arguments in the test's directory, as if in file, which has before once, there was after in its
// place. The test must fail, and say which property does not hold.
func Noticed(t *testing.T, file, before, after string, args ...string) {
	t.Helper()
	args = append([]string{"test", "-count=1", "-vet=off", "-gcflags=-N -l -dwarf=false", "-ldflags=-s -w", "-overlay", overlay(t, file, before, after)}, args...)
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	found := counterexample.FindStringSubmatch(string(out))
	if err == nil || found == nil {
		t.Fatalf("it has no counterexample (%v):\n%s", err, out)
	}
	t.Logf("%s: %.200s", found[1], found[2])
}

// overlay writes the changed file, and the list of changed files for the go command.
func overlay(t *testing.T, file, before, after string) (name string) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), before); n != 1 {
		t.Fatalf("%s has %q %d times, not once: bring the table up to date", file, before, n)
	}
	original, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), before, after, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		t.Fatal(err)
	}
	name = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
