package launch

import (
	"io"
	"os"
	"syscall"
)

// parentPipe is a pipe without a writer. Its read end is the standard input of the ranks, and this
// process alone has its write end. When this process ends, in whatever way, the kernel closes the
// write end, and the ranks read end of file.
type parentPipe struct{ read, hold *os.File }

func (t *parentPipe) open() (err error) {
	t.read, t.hold, err = os.Pipe()
	return err
}

// started closes the read end here: the ranks have it.
func (t *parentPipe) started() {
	t.read.Close()
	t.read = nil
}

func (t *parentPipe) release() {
	if t.hold != nil {
		t.hold.Close()
	}
}

// ExitWithParent makes this process exit when the one that started it ends. It is for programs that
// were started with Spec.ParentPipe, such as test binaries that start themselves again. It takes
// over standard input; if that is not a pipe, it does nothing.
//
// The goroutine that it starts lives until this process ends.
func ExitWithParent() {
	info, err := os.Stdin.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return
	}
	go exitAtEOF()
}

// exitAtEOF kills its children too if it leads their process group, as each rank does.
func exitAtEOF() {
	_, _ = io.Copy(io.Discard, os.Stdin) // it ends when the parent does
	if syscall.Getpgrp() == os.Getpid() {
		_ = syscall.Kill(0, syscall.SIGKILL)
	}
	os.Exit(1)
}
