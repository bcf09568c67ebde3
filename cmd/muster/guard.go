package main

import (
	"crypto/rand"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

// envGuard marks the processes of a "muster run", for its guard. Children inherit it.
const envGuard = "MUSTER_GUARD"

// guard is a process that ends what is left of a job after its "muster run" was killed by SIGKILL. The
// kernel ends the ranks then (package launch), but not the processes that they have started. The
// guard reads a pipe that only "muster run" can write to: at its end, without the farewell, it kills
// all processes of the same session that have the mark in their environment.
type guard struct {
	mark string
	cmd  *exec.Cmd // nil: there is none on this system, or it could not be started
	pipe io.WriteCloser
}

// startGuard starts a guard. The job runs without one if that is not possible.
func startGuard() *guard {
	g := &guard{mark: envGuard + "=" + rand.Text()}
	path, err := os.Executable()
	if err != nil || guardAttr() == nil {
		return g
	}
	cmd := exec.Command(path, "guard", g.mark)
	cmd.SysProcAttr = guardAttr()
	if g.pipe, err = cmd.StdinPipe(); err == nil && cmd.Start() == nil {
		g.cmd = cmd
	}
	return g
}

// close ends the guard: all processes of the job have ended.
func (g *guard) close() {
	if g.cmd == nil {
		return
	}
	_, _ = g.pipe.Write([]byte{1})
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    "guard MARK",
		Short:  "End what is left of a muster run that was killed",
		Hidden: true,
		Args:   operands("MARK"),
		RunE: func(_ *cobra.Command, args []string) error {
			ignoreSignals()
			if n, _ := os.Stdin.Read(make([]byte, 1)); n == 0 {
				endMarked(args[0])
			}
			return nil
		},
	}
}
