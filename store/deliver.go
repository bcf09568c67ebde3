package store

import (
	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// delivery is a reply on its way to a connection.
type delivery struct {
	conn   sessionConn
	effect core.Effect
}

// deliverAll delivers replies that show the log up to pos. When it returns, each is written to its
// socket, or waits in an outbox for its peer or for the log.
func deliverAll(letters []delivery, pos uint64) {
	letters = deliverToRelays(letters, pos)
	if len(letters) < transport.ParallelFrom { // without a closure, which would be allocated
		deliverInOrder(letters, pos)
		return
	}
	transport.InParallel(len(letters), func(from, to int) { deliverInOrder(letters[from:to], pos) })
}

func deliverInOrder(letters []delivery, pos uint64) {
	var e encoder
	for i, l := range letters {
		l.conn.deliver(l.effect, pos, &e)
		if i+1 == len(letters) || letters[i+1].conn != l.conn {
			l.conn.Flush()
		}
	}
}

// encoder encodes a reply once for all sessions that get the same one.
type encoder struct {
	reply *wire.Reply
	body  *transport.Body
	head  [wire.HeaderLen]byte
}

// frameOf returns the frame that answers e: a header for e alone, valid until the next call, and a
// body that may be shared.
func (c *encoder) frameOf(e core.Effect) (head []byte, body *transport.Body) {
	if c.reply != e.Reply {
		c.reply = e.Reply
		frame := wire.AppendReply(nil, e.Op, e.ID, e.Reply)
		c.body = &transport.Body{Bytes: frame[wire.HeaderLen:]}
		copy(c.head[:], frame)
	}
	wire.Readdress(c.head[:], e.Op, e.ID)
	return c.head[:], c.body
}
