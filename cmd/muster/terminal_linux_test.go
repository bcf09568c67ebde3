package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onTerminal starts muster on a terminal with the given width.
func onTerminal(t *testing.T, width uint16, args ...string) (ptm *os.File, cmd *exec.Cmd) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), self(t), args...)
	cmd.Env = append(os.Environ(), role+"="+roleMuster, "NO_COLOR=1", "TERM=xterm")
	return startOn(t, width, cmd), cmd
}

// onOwnTerminal starts cmd on a terminal that it controls: when that is closed, it gets SIGHUP.
func onOwnTerminal(t *testing.T, cmd *exec.Cmd) (*os.File, *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return startOn(t, 80, cmd), cmd
}

// startOn starts cmd on a terminal with the given width, whose other side it returns.
func startOn(t *testing.T, width uint16, cmd *exec.Cmd) (ptm *os.File) {
	t.Helper()
	ptm, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("SKIPPED: no terminals here:", err)
	}
	t.Cleanup(func() { _ = ptm.Close() })
	n, err := unix.IoctlGetInt(int(ptm.Fd()), unix.TIOCGPTN)
	if err = errors.Join(err, unix.IoctlSetPointerInt(int(ptm.Fd()), unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	pts, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("SKIPPED: no terminals here:", err)
	}
	require.NoError(t, unix.IoctlSetWinsize(int(pts.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
	require.NoError(t, cmd.Start())
	_ = pts.Close()
	return ptm
}

// terminal runs muster on a terminal with the given width, and returns what it wrote there.
func terminal(t *testing.T, width uint16, args ...string) string {
	t.Helper()
	ptm, cmd := onTerminal(t, width, args...)
	var out bytes.Buffer
	_, _ = out.ReadFrom(ptm) // ends with EIO
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, out.String())
	}
	return out.String()
}

// erase clears the line, before a bar is drawn and to remove it.
const erase = "\r\x1b[K"

// drawn checks that out contains bars with text that fit into the width of the terminal, and that
// it does not end with one.
func drawn(t *testing.T, out string, width int, text string) {
	t.Helper()
	parts := strings.Split(out, erase)
	require.Greater(t, len(parts), 2, "%q", out)
	require.NotContains(t, parts[len(parts)-1], text, "a bar is left: %q", out)
	n := 0
	for _, p := range parts[1:] {
		if line, _, _ := strings.Cut(p, "\r\n"); strings.Contains(line, text) {
			require.Less(t, len([]rune(line)), width, "%q", line)
			n++
		}
	}
	require.Positive(t, n, "no bar with %q in %q", text, out)
}

func TestWhoWatchEndsInTime(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	ptm, cmd := onTerminal(t, 80, "who", "--watch", "--store", url, "--timeout", "100ms")
	var out bytes.Buffer
	_, _ = out.ReadFrom(ptm) // ends with EIO
	_ = cmd.Wait()
	require.Equal(t, 4, cmd.ProcessState.ExitCode(), "%q", out.String())
	require.Contains(t, out.String(), "the time given by --timeout is over")
}

func TestBenchShowsProgress(t *testing.T) {
	t.Parallel()
	for _, width := range []int{30, 120} {
		out := terminal(t, uint16(width), "bench", "-n", "2,3", "--time", "5ms", "--cases", "barrier,get")
		drawn(t, out, width, " of 4 measured")
		require.Contains(t, out, "  barrier ")
	}
	r := run(t, "bench", "-n", "2", "--time", "5ms", "--cases", "barrier")
	require.Empty(t, r.stderr)
	require.NotContains(t, r.stdout, "\x1b")
}

func TestBackupAndRestoreShowProgress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	_, url := serve(t, "--data", path("data"))
	many := exec.CommandContext(t.Context(), self(t), "fill", url)
	many.Env = append(os.Environ(), role+"="+roleFiller)
	out, err := many.CombinedOutput()
	require.NoError(t, err, "%s", out)

	drawn(t, terminal(t, 80, "backup", "--store", url, path("a")), 80, "MiB")
	drawn(t, terminal(t, 80, "restore", path("a"), "--data", path("new")), 80, " of 4000 entries")
	require.Empty(t, run(t, "restore", path("a"), "--data", path("again")).stderr)
	r := run(t, "backup", "--store", url, path("b"))
	require.NotContains(t, r.stderr, "\x1b")
}

// TestRunShowsWhoHasCome checks that run shows how many ranks have joined until all have, and
// removes the bar then.
func TestRunShowsWhoHasCome(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	require.NoError(t, unix.Mkfifo(gate, 0o600))
	script := `[ $RANK = 0 ] || read x < "$1"; MUSTER_TEST_ROLE=rank exec "$0"`
	ptm, cmd := onTerminal(t, 80, "run", "-n", "2", "--", "sh", "-c", script, self(t), gate)
	var out bytes.Buffer
	for b := make([]byte, 4096); !strings.Contains(out.String(), "1 of 2 ranks have joined world"); {
		n, err := ptm.Read(b)
		out.Write(b[:n])
		require.NoError(t, err, "%q", out.String())
	}
	require.NoError(t, os.WriteFile(gate, []byte("\n"), 0))
	_, _ = out.ReadFrom(ptm) // ends with EIO
	require.NoError(t, cmd.Wait(), out.String())
	drawn(t, out.String(), 80, "ranks have joined world")
	require.Contains(t, out.String(), "[0] [0 10] <nil> <nil>\r\n")
}

// TestRunWithoutATerminal checks that run shows no bar without a terminal, nor on a terminal if the
// start is fast.
func TestRunWithoutATerminal(t *testing.T) {
	t.Parallel()
	r := run(t, "run", "-n", "2", "--", "sh", "-c", "echo here")
	require.NotContains(t, r.stdout+r.stderr, "\x1b")
	require.NotContains(t, terminal(t, 80, "run", "-n", "1", "--", "sh", "-c", "echo here"), "ranks have")
}

// TestWhoWatchAndPageFindTheLocalJob checks that both need no URL for the job that runs on this host.
func TestWhoWatchAndPageFindTheLocalJob(t *testing.T) {
	t.Parallel()
	env := []string{"XDG_RUNTIME_DIR=" + t.TempDir(), "MUSTER_STORE="}
	job := startIn(t, nil, env, runSh(1, "--no-prefix", "echo $MUSTER_STORE; exec sleep 60")...)
	url := job.line(t, "muster://")
	cmd := exec.CommandContext(t.Context(), self(t), "who", "--watch", "--timeout", "1s")
	cmd.Env = append(append(os.Environ(), role+"="+roleMuster, "TERM=xterm"), env...)
	ptm := startOn(t, 80, cmd)
	var out bytes.Buffer
	_, _ = out.ReadFrom(ptm) // ends with EIO
	_ = cmd.Wait()
	require.Contains(t, out.String(), url)
	page := startIn(t, nil, env, "page", "--http", "127.0.0.1:0")
	_, at, _ := strings.Cut(page.line(t, "http://"), "http://")
	checkGet(t, "http://"+strings.Fields(at)[0]+"status", 200, `"waiting":[]`)
}
