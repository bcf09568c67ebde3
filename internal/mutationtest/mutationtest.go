// Package mutationtest breaks a rule in a copy of a source file, and shows that a test notices.
//
// The mutants of a package are patches in its testdata/mutants.txt:
//
//	the rule that is broken
//	test: ^TestThatMustFail$
//	--- file.go
//	 	text of the file
//	-	text that it has
//	+	text that it has instead
//
// The first line is the name of the subtest. Without a test, the simulation must find a counterexample. The file is
// relative to the package. The text that it has, which are the lines with a space or -, occurs in it exactly once: it is
// whole lines, or a part of one. A blank line ends a mutant. Outside of patches a line that begins with # is a comment.
package mutationtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// counterexample is what a test prints that has found one.
var counterexample = regexp.MustCompile(`(?m)([A-Z][0-9] .*) does not hold: (.*)$`)

// failure is what a test prints that fails or panics.
var failure = regexp.MustCompile(`(?m)^ *--- FAIL: .*$|^panic: .*$`)

// mutantsFile has the mutants of the package whose test runs.
const mutantsFile = "testdata/mutants.txt"

// mutant is one change of a source file that breaks a rule, which a test must notice.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs exactly once in file
	test     string // the test that must fail, as of -run; "": the simulation must find a counterexample
}

// Run runs "go test" in the test's directory for each mutant that this run tries. simulation are the arguments for
// mutants without a test. It checks that all mutants can be made.
//
// With MUSTER_SOAK it tries all mutants, otherwise one of step, and with step 0 one. The first is number MUSTER_MUTANTS
// modulo step, or 0, so that runs with successive numbers try all of them.
func Run(t *testing.T, step int, simulation ...string) {
	if testing.Short() {
		t.Skip("SKIPPED: each mutant is built: not in a short run")
	}
	text, err := os.ReadFile(mutantsFile)
	require.NoError(t, err)
	mutants := parse(t, string(text))
	if step == 0 {
		step = len(mutants)
	}
	from := 0
	if number := os.Getenv("MUSTER_MUTANTS"); number != "" {
		v, err := strconv.ParseUint(number, 10, 32)
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
		changed, err := m.apply()
		require.NoError(t, err)
		if i%step == from {
			t.Run(m.name, func(t *testing.T) { m.mustBeNoticed(t, changed, simulation) })
		}
	}
}

// mustBeNoticed runs the tests with the mutant. The simulation must say which property does not hold. Another test must
// fail, or end its process by a panic: a build that fails, and a test that takes too long, do not count.
func (m *mutant) mustBeNoticed(t *testing.T, changed string, args []string) {
	t.Helper()
	notice := counterexample
	if m.test != "" {
		args, notice = []string{"-run", m.test}, failure
	}
	args = append([]string{"test", "-count=1", "-json=false", "-vet=off", "-gcflags=-N -l -dwarf=false", "-ldflags=-s -w", "-overlay", m.overlay(t, changed)}, args...)
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput() // text, whatever GOFLAGS is
	found := notice.Find(out)
	if err == nil || found == nil || bytes.Contains(out, []byte("panic: test timed out")) {
		t.Fatalf("no test notices it (%v):\n%s", err, out)
	}
	t.Logf("%.200s", found)
}

// parse returns the mutants of text, which is that of mutantsFile: blocks with a blank line between them.
func parse(t *testing.T, text string) (mutants []*mutant) {
	t.Helper()
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n\n") {
		m := new(mutant)
		for line := range strings.SplitSeq(block, "\n") {
			m.add(t, line)
		}
		if m.name != "" { // otherwise the block is comments
			mutants = append(mutants, m)
		}
	}
	return mutants
}

// add adds a line of the mutant's block.
func (m *mutant) add(t *testing.T, line string) {
	t.Helper()
	file, isFile := strings.CutPrefix(line, "--- ")
	test, isTest := strings.CutPrefix(line, "test: ")
	text := line[1:] + "\n"
	switch {
	case m.file != "" && line[0] == ' ':
		m.old += text
		m.new += text
	case m.file != "" && line[0] == '-':
		m.old += text
	case m.file != "" && line[0] == '+':
		m.new += text
	case strings.HasPrefix(line, "#"):
	case m.name == "":
		m.name = line
	case isFile:
		m.file = file
	case isTest:
		m.test = test
	default:
		t.Fatalf("%s: %q: %q is no test, file, comment, or line of a patch", mutantsFile, m.name, line)
	}
}

// apply returns the text of the file with the change.
func (m *mutant) apply() (changed string, err error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return "", fmt.Errorf("%s: %q: %w", mutantsFile, m.name, err)
	}
	before, after := strings.TrimSuffix(m.old, "\n"), strings.TrimSuffix(m.new, "\n")
	if n := strings.Count(string(text), before); n != 1 {
		return "", fmt.Errorf("%s: %q: %s has this text %d times, not once: bring the mutant up to date:\n%s", mutantsFile, m.name, m.file, n, before)
	}
	return strings.Replace(string(text), before, after, 1), nil
}

// overlay writes a file with the changed text, and the list of changed files for the go command.
func (m *mutant) overlay(t *testing.T, text string) (name string) {
	t.Helper()
	original, err := filepath.Abs(m.file)
	require.NoError(t, err)
	dir := t.TempDir()
	changed := filepath.Join(dir, filepath.Base(m.file))
	require.NoError(t, os.WriteFile(changed, []byte(text), 0o600))
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	require.NoError(t, err)
	name = filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(name, list, 0o600))
	return name
}
