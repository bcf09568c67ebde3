package tcpstore

import (
	"errors"
	"net"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
)

const (
	// firstBuffer is the initial size of a connection's buffer. It is small, since most connections
	// are idle most of the time.
	firstBuffer = 4 << 10
	// keptBuffer is the maximum size of a buffer that is kept after a large message.
	keptBuffer = 64 << 10
)

// inbox splits the bytes of a connection into messages. The buffer for a large message grows as its
// bytes arrive: a length field alone allocates nothing. A buffer that is larger than firstBuffer is
// reserved; if that fails, next returns errBuffers, which ends the connection.
type inbox struct {
	buffers  *transport.Budget // nil: no limit
	reserved int               // bytes of buffers
	full     bool              // a reservation has failed
	limits   tcpwire.Limits
	buf      []byte
	r, w     int // buf[r:w] is unread
	borrowed bool
	cursor   tcpwire.Cursor
}

// finder finds the end of a message at the front of b.
type finder func(b []byte, c *tcpwire.Cursor, limits tcpwire.Limits) (n int, whole bool, err error)

// errBuffers is the error of a connection whose unfinished request, or whose answers, do not fit.
var errBuffers = errors.New("the server's buffers are full (ServerLimits.Buffers): the peer may try again")

// hold reserves a buffer of n bytes in place of what is reserved, and reports whether it could.
func (in *inbox) hold(n int) bool {
	if n <= firstBuffer {
		n = 0
	}
	if !in.buffers.Reserve(n - in.reserved) {
		in.full = true
		return false
	}
	in.reserved = n
	return true
}

// next returns the next complete message. It is valid until the next call of next, room or
// giveBack.
func (in *inbox) next(find finder) (message []byte, need int, err error) {
	if in.full {
		return nil, 0, errBuffers
	}
	b := in.buf[in.r:in.w]
	n, whole, err := find(b, &in.cursor, in.limits)
	if err != nil || !whole {
		return nil, n, err
	}
	in.r += n
	return b[:n:n], n, nil
}

// receive reads from c until there is a complete message.
func (in *inbox) receive(c net.Conn, find finder) ([]byte, error) {
	for {
		message, need, err := in.next(find)
		if message != nil || err != nil {
			return message, err
		}
		if err := in.fill(c, need); err != nil {
			return nil, err
		}
	}
}

// fill reads from c. The message needs at least need bytes.
func (in *inbox) fill(c net.Conn, need int) error {
	n, err := c.Read(in.room(need))
	in.w += n
	if n > 0 {
		return nil
	}
	return err
}

// room returns the buffer to read into, given that the message needs at least need bytes. A caller
// that has read n bytes adds n to w.
func (in *inbox) room(need int) []byte {
	have := in.w - in.r
	left := in.left()
	if left || in.w == len(in.buf) || have == 0 {
		buf := in.buf
		if left || have == len(buf) {
			// for a list, need covers no more than the next item
			n := max(firstBuffer, min(max(need, have+have/4), 4*have))
			if !in.hold(n) {
				in.buf, in.r, in.w = make([]byte, 1), 0, 0 // never parsed
				return in.buf
			}
			buf = make([]byte, n)
		}
		in.r, in.w = 0, copy(buf, in.buf[in.r:in.w])
		in.buf = buf
	}
	return in.buf[in.w:]
}

// left reports whether buf was allocated for a large message, and now holds a small one or a part
// of one.
func (in *inbox) left() bool { return len(in.buf) > keptBuffer && in.w-in.r < len(in.buf)/8 }

// borrow uses buf as the buffer, if no unread bytes are left. Most messages arrive whole, and then
// need no buffer of their own.
func (in *inbox) borrow(buf []byte) {
	if in.r == in.w {
		in.hold(0)
		in.buf, in.r, in.w, in.borrowed = buf, 0, 0, true
	}
}

// giveBack ends the use of a shared buffer, or of one for a large message, and copies the unread
// bytes to a new buffer. Without unread bytes the inbox keeps no buffer.
func (in *inbox) giveBack() {
	rest := in.buf[in.r:in.w]
	if !in.borrowed && !in.left() && len(rest) > 0 {
		return
	}
	in.buf, in.r, in.w, in.borrowed = nil, 0, 0, false
	if n := max(firstBuffer, len(rest)); len(rest) == 0 || !in.hold(n) {
		in.hold(0)
	} else {
		in.buf = make([]byte, n)
		in.w = copy(in.buf, rest)
	}
}
