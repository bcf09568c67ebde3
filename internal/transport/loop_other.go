//go:build !linux

package transport

import (
	"errors"
	"net"
)

// Loop reads many sockets from one goroutine. It is not supported on this system: NewLoop returns
// an error, and each connection is read by a separate goroutine.
type Loop struct{}

// Sock is a socket of a Loop.
type Sock struct {
	Socket
	outbox *Outbox
}

// NewLoop is not supported here.
func NewLoop() (*Loop, error) { return nil, errors.ErrUnsupported }

// Adopt is not supported here.
func (l *Loop) Adopt(*net.TCPConn, func(Socket) (Reader, error)) error { return errors.ErrUnsupported }

// Close does nothing.
func (l *Loop) Close() {}

// Kind returns "".
func (l *Loop) Kind() string { return "" }
