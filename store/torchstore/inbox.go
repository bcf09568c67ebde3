package torchstore

import (
	"net"

	"github.com/muster-pg/muster/wire/tcpstore"
)

const (
	// firstRoom is the size of a connection's buffer: small, since most are idle most of the time.
	firstRoom = 4 << 10
	// mostRoom is how large a buffer may stay behind after a large message.
	mostRoom = 64 << 10
)

// inbox cuts what a connection brings into messages. A large one gets room as it comes: a length alone makes nobody pay.
type inbox struct {
	limits   tcpstore.Limits
	buf      []byte
	r, w     int // what is in buf
	borrowed bool
	cursor   tcpstore.Cursor
}

// finder finds the end of a message at the front of b.
type finder func(b []byte, c *tcpstore.Cursor, limits tcpstore.Limits) (n int, whole bool, err error)

// next is the next message that is whole. It is good until next, room or giveBack is called.
func (in *inbox) next(find finder) (message []byte, need int, err error) {
	b := in.buf[in.r:in.w]
	n, whole, err := find(b, &in.cursor, in.limits)
	if err != nil || !whole {
		return nil, n, err
	}
	in.r += n
	return b[:n:n], n, nil
}

// receive reads from c until there is a whole message.
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

// fill reads from c, given that there must be need bytes to go on.
func (in *inbox) fill(c net.Conn, need int) error {
	n, err := c.Read(in.room(need))
	in.w += n
	if n > 0 {
		return nil
	}
	return err
}

// room is where to read to, given that there must be need bytes to go on. Who has read n bytes adds them to w.
func (in *inbox) room(need int) []byte {
	have := in.w - in.r
	left := in.left()
	if left || in.w == len(in.buf) || have == 0 {
		buf := in.buf
		if left || have == len(buf) {
			buf = make([]byte, max(firstRoom, min(max(need, have+have/4), 4*have))) // of a list, need is no more than the next item
		}
		in.r, in.w = 0, copy(buf, in.buf[in.r:in.w])
		in.buf = buf
	}
	return in.buf[in.w:]
}

// left reports whether buf is there for a large message, before a small one, or a piece of one.
func (in *inbox) left() bool { return len(in.buf) > mostRoom && in.w-in.r < len(in.buf)/8 }

// borrow makes buf the room, if there is nothing to go on with: most messages come whole, and then need none of their own.
func (in *inbox) borrow(buf []byte) {
	if in.r == in.w {
		in.buf, in.r, in.w, in.borrowed = buf, 0, 0, true
	}
}

// giveBack keeps what is left in what was borrowed, or was for a large message, and no room if nothing is left.
func (in *inbox) giveBack() {
	rest := in.buf[in.r:in.w]
	if !in.borrowed && !in.left() && len(rest) > 0 {
		return
	}
	in.buf, in.r, in.w, in.borrowed = nil, 0, 0, false
	if len(rest) > 0 {
		in.buf = make([]byte, max(firstRoom, len(rest)))
		in.w = copy(in.buf, rest)
	}
}
