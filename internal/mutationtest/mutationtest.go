// Package mutationtest breaks a rule in a copy of a source file, and shows that a test notices.
package mutationtest

import (
	"bytes"
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

// Mutant is one change of a source file that breaks a rule, which a test must notice.
type Mutant struct {
	Name     string
	File     string
	Old, New string // Old occurs exactly once in File
	Test     string // the test that must fail, as of -run; "": the simulation must find a counterexample
}

// Run runs "go test" in the test's directory for each mutant that this run tries. simulation are the arguments for
// mutants without a Test. It checks that all mutants can be made.
//
// With MUSTER_SOAK it tries all mutants, otherwise one of step. The first is number MUSTER_MUTANTS modulo step, or 0,
// so that runs with successive numbers try all of them.
func Run(t *testing.T, mutants []Mutant, step int, simulation ...string) {
	if testing.Short() {
		t.Skip("SKIPPED: each mutant is built: not in a short run")
	}
	from := 0
	if text := os.Getenv("MUSTER_MUTANTS"); text != "" {
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			t.Fatal("MUSTER_MUTANTS: ", err)
		}
		from = int(v % uint64(step)) // #nosec G115 -- less than step
	}
	if os.Getenv("MUSTER_SOAK") != "" {
		from, step = 0, 1
	}
	t.Logf("each %dth of %d mutants from number %d on (MUSTER_MUTANTS=%d); MUSTER_SOAK=1 tries all", step, len(mutants), from, from)
	for i, m := range mutants {
		m.apply(t)
		if i%step == from {
			t.Run(m.Name, func(t *testing.T) { m.mustBeNoticed(t, simulation) })
		}
	}
}

// mustBeNoticed runs the tests with the mutant. The simulation must say which property does not hold. Another test must
// fail, or end its process by a panic: a build that fails, and a test that takes too long, do not count.
func (m *Mutant) mustBeNoticed(t *testing.T, args []string) {
	t.Helper()
	notice := counterexample
	if m.Test != "" {
		args, notice = []string{"-run", m.Test}, failure
	}
	args = append([]string{"test", "-count=1", "-json=false", "-vet=off", "-gcflags=-N -l -dwarf=false", "-ldflags=-s -w", "-overlay", m.overlay(t)}, args...)
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput() // text, whatever GOFLAGS is
	found := notice.Find(out)
	if err == nil || found == nil || bytes.Contains(out, []byte("panic: test timed out")) {
		t.Fatalf("no test notices it (%v):\n%s", err, out)
	}
	t.Logf("%.200s", found)
}

// apply returns the source with the change.
func (m *Mutant) apply(t *testing.T) (changed string) {
	t.Helper()
	src, err := os.ReadFile(m.File)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), m.Old); n != 1 {
		t.Fatalf("%s has %q %d times, not once: bring the table up to date", m.File, m.Old, n)
	}
	return strings.Replace(string(src), m.Old, m.New, 1)
}

// overlay writes the changed file, and the list of changed files for the go command.
func (m *Mutant) overlay(t *testing.T) (name string) {
	t.Helper()
	original, err := filepath.Abs(m.File)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(changed, []byte(m.apply(t)), 0o600); err != nil {
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
