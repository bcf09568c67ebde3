// Package mutationtest breaks a rule in a copy of a source file, and shows that a test notices.
package mutationtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// counterexample is what a test prints that has found one.
var counterexample = regexp.MustCompile(`(?m)([A-Z][0-9] .*) does not hold: (.*)$`)

// failure is what a test prints that fails or panics.
var failure = regexp.MustCompile(`(?m)^ *--- FAIL: .*$|^panic: .*$`)

// Noticed runs "go test" with arguments in the test's directory, as if in file, which has before once, there was after in its
// place. The test must fail, and say which property does not hold.
func Noticed(t *testing.T, file, before, after string, args ...string) {
	t.Helper()
	out, err := test(t, file, before, after, args...)
	found := counterexample.FindStringSubmatch(out)
	if err == nil || found == nil {
		t.Fatalf("it has no counterexample (%v):\n%s", err, out)
	}
	t.Logf("%s: %.200s", found[1], found[2])
}

// NoticedBy is Noticed for a test of another kind: it must fail, or end its process by a panic. A build that fails, and a
// test that takes too long, do not count.
func NoticedBy(t *testing.T, file, before, after, name string) {
	t.Helper()
	out, err := test(t, file, before, after, "-run", name)
	found := failure.FindString(out)
	if err == nil || found == "" || strings.Contains(out, "panic: test timed out") {
		t.Fatalf("%s does not notice it (%v):\n%s", name, err, out)
	}
	t.Logf("%.200s", found)
}

// test runs "go test" with after in place of before. It prints text, whatever GOFLAGS is.
func test(t *testing.T, file, before, after string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{"test", "-count=1", "-json=false", "-vet=off", "-gcflags=-N -l -dwarf=false", "-ldflags=-s -w", "-overlay", overlay(t, file, before, after)}, args...)
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	return string(out), err
}

// Sampled reports which of n mutants a run tries: all with MUSTER_SOAK, otherwise one of step. The first is number
// MUSTER_MUTANTS modulo step, or 0, so that runs with successive numbers try all of them. It logs the choice.
func Sampled(t *testing.T, n, step int) (tries func(i int) bool) {
	t.Helper()
	if os.Getenv("MUSTER_SOAK") != "" {
		t.Logf("all %d mutants", n)
		return func(int) bool { return true }
	}
	from := 0
	if text := os.Getenv("MUSTER_MUTANTS"); text != "" {
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal("MUSTER_MUTANTS: ", err)
		}
		from = int(v % uint64(step)) // #nosec G115 -- less than step
	}
	t.Logf("%d of %d mutants: each %dth from number %d on (MUSTER_MUTANTS=%d); MUSTER_SOAK=1 tries all", (n-from+step-1)/step, n, step, from, from)
	return func(i int) bool { return i%step == from }
}

// Applies checks that a mutant can be made, and returns the source: file has before once. It is for all mutants of a
// table, since a run tries only some of them.
func Applies(t *testing.T, file, before string) (source string) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), before); n != 1 {
		t.Fatalf("%s has %q %d times, not once: bring the table up to date", file, before, n)
	}
	return string(src)
}

// overlay writes the changed file, and the list of changed files for the go command.
func overlay(t *testing.T, file, before, after string) (name string) {
	t.Helper()
	src := Applies(t, file, before)
	original, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(changed, []byte(strings.Replace(src, before, after, 1)), 0o600); err != nil {
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
