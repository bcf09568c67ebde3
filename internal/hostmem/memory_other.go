//go:build !linux

package hostmem

import "time"

// Ref names a memory to the other processes of its host.
type Ref struct {
	PID, File int
	Token     []byte
}

// Create returns ErrUnsupported.
func Create(int, int, time.Duration) (*Memory, Ref, error) { return nil, Ref{}, ErrUnsupported }

// Open returns ErrUnsupported.
func Open(Ref, int, int, time.Duration) (*Memory, error) { return nil, ErrUnsupported }

func (m *Memory) closeFile()                       {}
func (m *Memory) bell(int) uint32                  { return 0 }
func (m *Memory) sleep(int, uint32, time.Duration) {}
func (m *Memory) wake(int)                         {}
