package main_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// faultRounds is the variable with the number of rounds of TestRunLeavesNothingBehind.
const faultRounds = "MUSTER_FAULT_ROUNDS"

// fault is one way to end a launcher.
type fault struct {
	name string
	end  func(t *testing.T, l *launcher)
}

// launcher is a "muster run" that a fault is to end.
type launcher struct {
	cmd     *exec.Cmd
	output  *os.File      // its reading end
	running chan struct{} // closed when a rank runs
	others  []*exec.Cmd   // of the other nodes
}

// TestRunLeavesNothingBehind ends launchers in random ways at random moments, from before their first
// rank runs to long after. Then no process of the job is left: ranks that ignore SIGTERM and SIGHUP,
// and their children. MUSTER_FAULT_ROUNDS is the number of rounds.
func TestRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	rounds := testcluster.Form(12, 400)
	if n, err := strconv.Atoi(os.Getenv(faultRounds)); err == nil {
		rounds = n
	}
	kill := func(t *testing.T, l *launcher) { require.NoError(t, l.cmd.Process.Kill()) }
	faults := []fault{
		{"SIGKILL", kill},
		{"closed terminal", func(_ *testing.T, l *launcher) { _ = l.output.Close() }},
		{"reader that goes away", func(_ *testing.T, l *launcher) { _ = l.output.Close() }},
		{"SIGKILL of a node", kill},
		{"SIGKILL of an elastic job", kill},
	}
	_, url := serve(t)
	for round := range rounds {
		f := faults[round%len(faults)]
		mark := fmt.Sprintf("MUSTER_TEST_FAULT=%d-%d", os.Getpid(), round)
		l := startFaulty(t, f.name, url, fmt.Sprint("job-", round), mark)
		wait := rand.N(300 * time.Millisecond)
		if round%3 == 0 { // at a moment when a rank runs
			select {
			case <-l.running:
			case <-time.After(limit):
				t.Fatalf("%s: no rank runs", f.name)
			}
		}
		<-time.After(wait)
		f.end(t, l)
		for _, other := range l.others {
			require.NoError(t, other.Process.Signal(syscall.SIGTERM))
			_ = other.Wait()
		}
		_ = l.cmd.Wait()
		_ = l.output.Close()
		var left []string
		testcluster.Eventually(t, limit, func() bool { left = marked(mark); return len(left) == 0 }, fmt.Sprintf("round %d, %s after %v: no process is left", round, f.name, wait))
	}
}

// startFaulty starts a job of two ranks, each with a child. They ignore the signals of a launcher.
func startFaulty(t *testing.T, fault, url, job, mark string) *launcher {
	t.Helper()
	script := `trap '' TERM HUP INT; sh -c 'trap "" TERM HUP INT; sleep 600' & echo ready; while :; do echo more; sleep 0.05; done`
	args := []string{"run", "-n", "2", "--kill-after", "50ms", "--no-prefix"}
	switch fault {
	case "SIGKILL of a node":
		args = []string{"run", "--nnodes", "1:2", "--settle", "0s", "-n", "1", "--kill-after", "50ms", "--no-prefix", "--job", job, "--store", url}
	case "SIGKILL of an elastic job":
		args = []string{"run", "--elastic", "1:2", "--max-restarts", "9", "--kill-after", "50ms", "--no-prefix"}
	}
	args = append(args, sh(script)...)
	l := &launcher{running: make(chan struct{})}
	command := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), self(t), args...)
		cmd.Env = append(os.Environ(), role+"="+roleMuster, "XDG_RUNTIME_DIR="+os.DevNull, mark)
		return cmd
	}
	if fault == "closed terminal" {
		l.output, l.cmd = onOwnTerminal(t, command())
	} else {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		l.output, l.cmd = r, command()
		l.cmd.Stdout, l.cmd.Stderr = w, w
		require.NoError(t, l.cmd.Start())
		_ = w.Close()
	}
	if fault == "SIGKILL of a node" {
		other := command()
		require.NoError(t, other.Start())
		l.others = append(l.others, other)
	}
	go func() {
		lines := bufio.NewScanner(l.output)
		for lines.Scan() && strings.TrimSpace(lines.Text()) != "ready" {
		}
		close(l.running)
		_, _ = io.Copy(io.Discard, l.output)
	}()
	return l
}

// marked returns the processes that have a variable in their environment, zombies excepted.
func marked(mark string) (left []string) {
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err == nil && bytes.Contains(env, []byte(mark+"\x00")) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			left = append(left, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return left
}
