//go:build !linux

package shm

import (
	"context"
	"net"
)

// Arena allocates memory that can be shared with peers; on this system there is none.
type Arena struct{}

// NewArena is ErrUnsupported.
func NewArena(*Options) (*Arena, error) { return nil, ErrUnsupported }

// CheckMemory returns nil: the limits of this system are unknown.
func CheckMemory(int64) error { return nil }

// Alloc is ErrUnsupported.
func (a *Arena) Alloc(int) ([]byte, error) { return nil, ErrUnsupported }

// Free panics: Alloc gave nothing.
func (a *Arena) Free(b []byte) {
	if len(b) > 0 {
		panic("shm: Free of bytes that are not of this arena")
	}
}

// Find is false.
func (a *Arena) Find([]byte) (Ref, bool) { return Ref{}, false }

// Trim does nothing.
func (a *Arena) Trim() {}

// Stats is zero.
func (a *Arena) Stats() Stats { return Stats{} }

// Close does nothing.
func (a *Arena) Close() error { return nil }

// Conn is one that has ended with ErrUnsupported.
type Conn struct{ done chan struct{} }

// NewConn closes c: the Conn has ended.
func NewConn(c *net.UnixConn) *Conn {
	_ = c.Close()
	done := make(chan struct{})
	close(done)
	return &Conn{done}
}

// Share returns ErrUnsupported.
func (c *Conn) Share(context.Context, *Arena, ...Ref) error { return ErrUnsupported }

// Unshare returns ErrUnsupported.
func (c *Conn) Unshare(...Ref) error { return ErrUnsupported }

// Map is ErrUnsupported.
func (c *Conn) Map(context.Context, ...Ref) ([]*Block, error) { return nil, ErrUnsupported }

// WaitReleased returns nil: nothing was shared.
func (c *Conn) WaitReleased(context.Context, ...Ref) error { return nil }

// Done is closed.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is ErrUnsupported.
func (c *Conn) Err() error { return ErrUnsupported }

// Close does nothing.
func (c *Conn) Close() error { return nil }

// Block is memory of the peer; on this system there is none.
type Block struct{ Data []byte }

// Release does nothing.
func (b *Block) Release() {}
