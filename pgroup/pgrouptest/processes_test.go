package pgrouptest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

// TestChildCounts appends a line to a file in each process.
func TestChildCounts(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Procs(t, 2, func(t *testing.T, _ *pgroup.Group) {
		f, err := os.OpenFile(os.Getenv("PGROUPTEST_FILE"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, "ran", testing.Short()); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCount checks that each repetition by -count runs all processes, with -short.
func TestCount(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ran")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command(t.Context(), "TestChildCounts", "-test.count=3", "-test.short")
	cmd.Env = append(cmd.Env, "PGROUPTEST_FILE="+file)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Repeat("ran true\n", 6); string(b) != want {
		t.Errorf("got %q, want %q", b, want)
	}
}

// TestCoverage checks that a profile has the counters of all processes, and that with -race the test
// passes, too.
func TestCoverage(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it builds another test binary")
	}
	profile := filepath.Join(t.TempDir(), "profile")
	for _, args := range [][]string{{"-coverprofile=" + profile}, {"-coverprofile=" + profile, "-covermode=atomic", "-count=2"}} {
		cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"test"}, args...), "./testdata/covered")...)
		b, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if !bytes.Contains(b, []byte("coverage: 100.0% of statements")) || bytes.Contains(b, []byte("[0]")) {
			t.Errorf("%s", b)
		}
		text, err := os.ReadFile(profile)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if len(lines) < 4 || slices.ContainsFunc(lines[1:], func(l string) bool { return strings.HasSuffix(l, " 0") }) {
			t.Errorf("the profile is\n%s", text)
		}
	}
}
