//go:build !linux

package transport

import (
	"errors"
	"net"
)

// Loop reads many sockets from one goroutine. It is not supported on this system: NewLoop returns
// an error, and each connection is read by a separate goroutine.
type Loop struct{}

// Reader handles the events of a Sock.
type Reader interface {
	Buffer(buf []byte) []byte
	Received(n int) error
	Flush()
	Ended(err error)
}

// Sock is a socket of a Loop.
type Sock struct {
	Pipe
	outbox *Outbox
}

// NewLoop is not supported here.
func NewLoop() (*Loop, error) { return nil, errors.ErrUnsupported }

// Adopt is not supported here.
func (l *Loop) Adopt(*net.TCPConn, func(*Sock) (Reader, error)) error { return errors.ErrUnsupported }

// Close does nothing.
func (l *Loop) Close() {}

// Pause does nothing.
func (s *Sock) Pause(bool) {}

// Kind returns "".
func (l *Loop) Kind() string { return "" }
