//go:build !linux

package hostmem

import (
	"runtime"
	"time"
)

// Ref names a memory to the other processes of its host.
type Ref struct {
	PID, File int
	Token     []byte
}

// Create returns ErrUnsupported.
func Create(int) (*Memory, Ref, error) { return nil, Ref{}, ErrUnsupported }

// Open returns ErrUnsupported.
func Open(Ref, int) (*Memory, error) { return nil, ErrUnsupported }

func (m *Memory) closeFile()                  {}
func (m *Memory) bell() uint32                { return 0 }
func (m *Memory) sleep(uint32, time.Duration) {}
func (m *Memory) wake()                       {}
func yield()                                  { runtime.Gosched() }
