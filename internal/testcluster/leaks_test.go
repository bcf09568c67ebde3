package testcluster_test

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

// TestLeavesOver is what TestLeaks runs in another process.
func TestLeavesOver(t *testing.T) {
	what := os.Getenv(leak)
	if what == "" {
		t.Skip("SKIPPED: TestLeaks runs this")
	}
	switch what {
	case "goroutine":
		go leftGoroutine()
	case "child":
		shell(t, "exec sleep 1000")
	case "orphan":
		_ = shell(t, "sleep 1000 & exit 0").Wait()
	case "zombie":
		shell(t, "exit 0")
	}
}

func shell(t *testing.T, script string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", script)
	require.NoError(t, cmd.Start())
	return cmd
}

func leftGoroutine() { <-make(chan int) }

func TestLeaks(t *testing.T) {
	testcluster.Shell(t)
	for what, want := range map[string]string{
		"nothing":   "",
		"zombie":    "",
		"goroutine": "leftGoroutine",
		"child":     "sleep 1000",
		"orphan":    "sleep 1000",
	} {
		t.Run(what, func(t *testing.T) {
			if what == "orphan" && runtime.GOOS != "linux" {
				t.Skip("SKIPPED: orphans are counted on Linux only")
			}
			t.Parallel() // each waits for what might still end
			said, err := leaking(t, what)
			if failed := err != nil; failed != (want != "") || !strings.Contains(said, want) {
				t.Errorf("%v; it said %q, want %q", err, said, want)
			}
		})
	}
}

// leaking runs the test binary again, as a rank of its own group: whatever it leaves
// over goes with it.
func leaking(t *testing.T, what string) (said string, err error) {
	exe, err := os.Executable()
	require.NoError(t, err)
	var out bytes.Buffer
	job, err := launch.Start(t.Context(), launch.Spec{
		N: 1, Path: exe, Args: []string{"-test.run=^TestLeavesOver$"}, ParentPipe: true, Output: &out, Grace: -1,
		Env: func(int) []string { return []string{leak + "=" + what, "GORACE=atexit_sleep_ms=0"} },
	})
	require.NoError(t, err)
	err = job.Wait()
	return out.String(), err
}
