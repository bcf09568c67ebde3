package tcpstore

import (
	"net"

	"github.com/muster-pg/muster/internal/tcpwire"
)

const (
	// firstBuffer is the initial size of a connection's buffer. It is small, since most connections
	// are idle most of the time.
	firstBuffer = 4 << 10
	// keptBuffer is the maximum size of a buffer that is kept after a large message.
	keptBuffer = 64 << 10
)

// inbox splits the bytes of a connection into messages. The buffer for a large message grows as its
// bytes arrive: a length field alone allocates nothing.
type inbox struct {
	limits   tcpwire.Limits
	buf      []byte
	r, w     int // buf[r:w] is unread
	borrowed bool
	cursor   tcpwire.Cursor
}

// finder finds the end of a message at the front of b.
type finder func(b []byte, c *tcpwire.Cursor, limits tcpwire.Limits) (n int, whole bool, err error)

// next returns the next complete message. It is valid until the next call of next, room or
// giveBack.
func (in *inbox) next(find finder) (message []byte, need int, err error) {
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
			buf = make([]byte, max(firstBuffer, min(max(need, have+have/4), 4*have)))
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
	if len(rest) > 0 {
		in.buf = make([]byte, max(firstBuffer, len(rest)))
		in.w = copy(in.buf, rest)
	}
}
