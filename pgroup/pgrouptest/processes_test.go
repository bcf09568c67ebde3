package pgrouptest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

var pid = regexp.MustCompile(`pid (\d+)`)

// TestChildLeavesAProcess starts a process that would live on, and prints its number.
func TestChildLeavesAProcess(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Procs(t, 1, func(t *testing.T, _ *pgroup.Group) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("pid %d", cmd.Process.Pid)
	})
}

// TestChildIsKilled prints the numbers of its processes, and waits.
func TestChildIsKilled(t *testing.T) {
	onlyWanted(t)
	pgrouptest.Procs(t, 2, func(*testing.T, *pgroup.Group) {
		fmt.Println("pid", os.Getpid())
		stuck()
	})
}

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

// gone waits until a process has ended.
func gone(t *testing.T, number string) {
	t.Helper()
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		state, err := os.ReadFile("/proc/" + number + "/stat")
		zombie := err == nil && bytes.Contains(state, []byte(") Z "))
		if syscall.Kill(n, 0) != nil || zombie {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d lives", n)
		}
		<-time.After(time.Millisecond)
	}
}

func TestNoProcessIsLeft(t *testing.T) {
	m := pid.FindStringSubmatch(failing(t, "TestChildLeavesAProcess"))
	gone(t, m[1])
}

// TestKilledTest checks that the processes end when the process of the test is killed.
func TestKilledTest(t *testing.T) {
	cmd := command(t.Context(), "TestChildIsKilled", "-test.v")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []string
	for b := make([]byte, 0, 1<<16); len(pids) < 2; {
		n, err := out.Read(b[len(b):cap(b)])
		if err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		b = b[:len(b)+n]
		pids = pids[:0]
		for _, m := range pid.FindAllSubmatch(b, -1) {
			pids = append(pids, string(m[1]))
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	for _, p := range pids {
		gone(t, p)
	}
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
