package proctest_test

import (
	"bytes"
	"context"
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

	"github.com/muster-pg/muster/proctest"
)

// TestRun checks that each process is another one, with its rank.
func TestRun(t *testing.T) {
	dir := os.Getenv("RUN_DIR")
	if !proctest.Child() {
		dir = t.TempDir()
	}
	proctest.Job{N: 3, Env: []string{"RUN_DIR=" + dir}}.Run(t, func(t *testing.T, p *proctest.Proc) {
		if p.Size() != 3 || !proctest.Child() || p.Timeout() <= 0 {
			t.Errorf("size %d, timeout %v", p.Size(), p.Timeout())
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(p.Rank())), []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	pids := map[string]bool{strconv.Itoa(os.Getpid()): true}
	for rank := range 3 {
		pid, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)))
		if err != nil {
			t.Fatal(err)
		}
		pids[string(pid)] = true
	}
	if len(pids) != 4 {
		t.Errorf("the processes are %v", pids)
	}
}

// TestSubtests checks names that are patterns, and several jobs in one test.
func TestSubtests(t *testing.T) {
	for _, name := range []string{"one", "with a space", "with (meta) chars.*"} {
		t.Run(name, func(t *testing.T) {
			for n := range 2 {
				proctest.Run(t, n+1, func(t *testing.T, p *proctest.Proc) {
					if p.Size() != n+1 {
						t.Errorf("job %d has %d processes", n, p.Size())
					}
				})
			}
		})
	}
}

func TestMayFail(t *testing.T) {
	proctest.Job{N: 3, MayFail: []int{1, 2}}.Run(t, func(t *testing.T, p *proctest.Proc) {
		switch p.Rank() {
		case 1:
			os.Exit(3)
		case 2:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
}

// The tests whose names begin with TestChild fail: they run only when another test starts them.

func wanted(t *testing.T) {
	if os.Getenv("PROCTEST_WANTED") == "" {
		t.Skip("SKIPPED: fails on purpose: run by the test of what a failure looks like")
	}
}

func TestChildFails(t *testing.T) {
	wanted(t)
	proctest.Run(t, 3, func(t *testing.T, p *proctest.Proc) {
		if p.Rank() == 1 {
			t.Fatal("rank one has had enough")
		}
		stuck()
	})
}

func TestChildPanics(t *testing.T) {
	wanted(t)
	proctest.Run(t, 2, func(_ *testing.T, p *proctest.Proc) {
		if p.Rank() == 1 {
			panic("out of my depth")
		}
		stuck()
	})
}

func TestChildHangs(t *testing.T) {
	wanted(t)
	proctest.Job{N: 3, Timeout: time.Second, Blame: func() string { return ": it is rank 2" }}.Run(t, func(_ *testing.T, p *proctest.Proc) {
		if p.Rank() > 0 {
			stuck()
		}
	})
}

// TestChildLeavesAProcess starts a process that would live on, and prints its number.
func TestChildLeavesAProcess(t *testing.T) {
	wanted(t)
	proctest.Run(t, 1, func(t *testing.T, _ *proctest.Proc) {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Fatalf("pid %d", cmd.Process.Pid)
	})
}

// TestChildIsKilled prints the numbers of its processes, and waits.
func TestChildIsKilled(t *testing.T) {
	wanted(t)
	proctest.Run(t, 2, func(*testing.T, *proctest.Proc) {
		fmt.Println("pid", os.Getpid())
		stuck()
	})
}

// TestChildCounts appends a line to a file in each process.
func TestChildCounts(t *testing.T) {
	wanted(t)
	proctest.Run(t, 2, func(t *testing.T, _ *proctest.Proc) {
		f, err := os.OpenFile(os.Getenv("PROCTEST_FILE"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, "ran", testing.Short()); err != nil {
			t.Fatal(err)
		}
	})
}

func stuck() { select {} }

// start returns the command that runs a test of this file that fails.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], append([]string{"-test.run=^" + name + "$"}, args...)...)
	cmd.Env = append(os.Environ(), "PROCTEST_WANTED=1")
	return cmd
}

// failing returns the output of a test that must fail, and contain these texts in this order.
func failing(t *testing.T, name string, texts ...string) string {
	t.Helper()
	b, err := start(t, name).CombinedOutput()
	if err == nil {
		t.Fatalf("%s passed:\n%s", name, b)
	}
	rest := string(b)
	for _, text := range texts {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			t.Fatalf("%q is missing, or not in this place:\n%s", text, b)
		}
		rest = after
	}
	return string(b)
}

func TestFirstFailureIsNamedAndPrintedFirst(t *testing.T) {
	failing(t, "TestChildFails", "[1] ", "rank one has had enough", "rank 1 failed first: rank 1: exit status 1")
	failing(t, "TestChildPanics", "[1] ", "panic: out of my depth", "rank 1 failed first: rank 1: exit status 1")
}

func TestHangShowsAllStacks(t *testing.T) {
	out := failing(t, "TestChildHangs", "the job did not end in 1s: it is rank 2")
	for _, rank := range []string{"[1]", "[2]"} {
		if !regexp.MustCompile(regexp.QuoteMeta(rank) + ` .*proctest_test\.stuck\(`).MatchString(out) {
			t.Errorf("no stack of rank %s:\n%s", rank, out)
		}
	}
	if strings.Contains(out, "[0]") {
		t.Errorf("rank 0 has ended:\n%s", out)
	}
}

var pid = regexp.MustCompile(`pid (\d+)`)

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
	m := pid.FindStringSubmatch(failing(t, "TestChildLeavesAProcess", "pid"))
	gone(t, m[1])
}

// TestKilledTest checks that the processes end when the process of the test is killed.
func TestKilledTest(t *testing.T) {
	cmd := start(t, "TestChildIsKilled", "-test.v")
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
	cmd := start(t, "TestChildCounts", "-test.count=3", "-test.short")
	cmd.Env = append(cmd.Env, "PROCTEST_FILE="+file)
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
