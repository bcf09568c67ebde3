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
	conn   net.Conn
	limits tcpstore.Limits
	buf    []byte
	r, w   int // what is in buf
	cursor tcpstore.Cursor
}

// finder finds the end of a message at the front of b.
type finder func(b []byte, c *tcpstore.Cursor, limits tcpstore.Limits) (n int, whole bool, err error)

// next is the next message that is whole. It is good until next or fill is called.
func (in *inbox) next(find finder) (message []byte, need int, err error) {
	b := in.buf[in.r:in.w]
	n, whole, err := find(b, &in.cursor, in.limits)
	if err != nil || !whole {
		return nil, n, err
	}
	in.r += n
	return b[:n:n], n, nil
}

// receive reads until there is a whole message.
func (in *inbox) receive(find finder) ([]byte, error) {
	for {
		message, need, err := in.next(find)
		if message != nil || err != nil {
			return message, err
		}
		if err := in.fill(need); err != nil {
			return nil, err
		}
	}
}

// fill reads, given that there must be need bytes to go on.
func (in *inbox) fill(need int) error {
	have := in.w - in.r
	left := len(in.buf) > mostRoom && have < len(in.buf)/8 // by a large message, before a small one, or a piece of one
	if left || in.w == len(in.buf) || have == 0 {
		buf := in.buf
		if left || have == len(buf) {
			buf = make([]byte, max(firstRoom, min(need, 4*have)))
		}
		in.r, in.w = 0, copy(buf, in.buf[in.r:in.w])
		in.buf = buf
	}
	n, err := in.conn.Read(in.buf[in.w:])
	in.w += n
	if n > 0 {
		return nil
	}
	return err
}
