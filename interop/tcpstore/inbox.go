package tcpstore

import (
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
)

const (
	// firstBuffer is the size of a connection's own buffer. It is small, since most connections are
	// idle most of the time.
	firstBuffer = 4 << 10
	// largeMessage is the size from which on an incomplete message must not stop arriving.
	largeMessage = 64 << 10
)

// inbox splits the bytes of a connection into messages.
type inbox struct {
	transport.Inbox
	limits tcpwire.Limits
	cursor tcpwire.Cursor
}

// finder finds the end of a message at the front of b.
type finder func(b []byte, c *tcpwire.Cursor, limits tcpwire.Limits) (n int, whole bool, err error)

// next returns the next message if it is complete, and otherwise how many bytes of it there must be
// room for. The caller takes the message when it is done with it.
func (in *inbox) next(find finder) (message []byte, need int, err error) {
	b, err := in.Unread()
	if err != nil {
		return nil, 0, err
	}
	n, whole, err := find(b, &in.cursor, in.limits)
	if err != nil || !whole {
		return nil, max(n, len(b)+len(b)/4), err // for a list, n covers no more than the next item
	}
	return b[:n:n], n, nil
}
