package launch

import (
	"io"
	"os"
	"syscall"
)

// tether is a pipe that nobody writes to: its read end is the ranks' standard
// input, and its write end is held by this process alone. When this process ends, by
// whatever means, the kernel closes the write end and the ranks read the end.
type tether struct{ read, hold *os.File }

func (t *tether) open() (err error) {
	t.read, t.hold, err = os.Pipe()
	return err
}

// started lets go of the read end: the ranks have it now.
func (t *tether) started() {
	t.read.Close()
	t.read = nil
}

func (t *tether) release() {
	if t.hold != nil {
		t.hold.Close()
	}
}

// ExitWithParent makes this process end when the one that started it ends. It is for
// programs that were started with Spec.Tether, test binaries that run themselves
// again above all. It takes over standard input; if that is no pipe, it does
// nothing.
//
// The goroutine that it starts lives until this process ends.
func ExitWithParent() {
	info, err := os.Stdin.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	go exitAtEOF()
}

// exitAtEOF takes its children along if it leads their group, as every rank does.
func exitAtEOF() {
	_, _ = io.Copy(io.Discard, os.Stdin) // any end of it is the parent's
	if syscall.Getpgrp() == os.Getpid() {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	os.Exit(1)
}
