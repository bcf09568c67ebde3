package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onOwnTerminal starts cmd on a terminal that it controls: when that is closed, it gets SIGHUP.
func onOwnTerminal(t *testing.T, cmd *exec.Cmd) (*os.File, *exec.Cmd) {
	t.Helper()
	if signal.Ignored(syscall.SIGHUP) { // under nohup; cmd would ignore it too
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return startOn(t, cmd), cmd
}

// startOn starts cmd on a terminal, whose other side it returns.
func startOn(t *testing.T, cmd *exec.Cmd) (ptm *os.File) {
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
	require.NoError(t, unix.IoctlSetWinsize(int(pts.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pts, pts, pts
	require.NoError(t, cmd.Start())
	_ = pts.Close()
	return ptm
}

// TestWhoWatchAndPageFindTheLocalJob checks that both need no URL for the job that runs on this host, and
// that who ends in time.
func TestWhoWatchAndPageFindTheLocalJob(t *testing.T) {
	t.Parallel()
	env := []string{"XDG_RUNTIME_DIR=" + t.TempDir(), "MUSTER_STORE="}
	job := startIn(t, nil, env, runSh(1, "--no-prefix", "echo $MUSTER_STORE; exec sleep 60")...)
	url := job.line(t, "muster://")
	cmd := exec.CommandContext(t.Context(), self(t), "who", "--watch", "--timeout", "1s")
	cmd.Env = append(append(os.Environ(), role+"="+roleMuster, "TERM=xterm", "NO_COLOR=1"), env...)
	ptm := startOn(t, cmd)
	var out bytes.Buffer
	_, _ = out.ReadFrom(ptm) // ends with EIO
	_ = cmd.Wait()
	require.Contains(t, out.String(), url)
	require.Contains(t, out.String(), "the time given by --timeout is over")
	require.Equal(t, 4, cmd.ProcessState.ExitCode())
	page := startIn(t, nil, env, "page", "--http", "127.0.0.1:0")
	_, at, _ := strings.Cut(page.line(t, "http://"), "http://")
	checkGet(t, "http://"+strings.Fields(at)[0]+"status", 200, `"waiting":[]`)
}
