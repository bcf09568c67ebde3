package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
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
