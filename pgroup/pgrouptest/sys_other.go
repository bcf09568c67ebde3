//go:build unix && !linux

package pgrouptest

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// attributes puts a process into a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// parentPipe is the standard input of the processes, of which the process of the test has the other end.
// When that ends, in whatever way, they read the end of the file.
type parentPipe struct{ read, hold *os.File }

func newParentPipe() (p *parentPipe, err error) {
	p = &parentPipe{}
	p.read, p.hold, err = os.Pipe()
	return p, err
}

func (p *parentPipe) close() { _ = errors.Join(p.read.Close(), p.hold.Close()) }

// exitWithParent ends this process, and its group, with the one that has started it. Its goroutine lives as
// long as the process.
func exitWithParent() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = syscall.Kill(0, syscall.SIGKILL)
	}()
}
