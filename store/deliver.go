package store

import (
	"runtime"
	"sync"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// letter is an answer on its way to a connection.
type letter struct {
	to     link
	effect core.Effect
}

// spreadFrom is how many letters are too many for the goroutine that happened to cause them:
// the last rank of a large barrier would write to all others before it reads on.
const spreadFrom = 64

// post delivers letters, which show the log up to pos. When it returns, each is written to its socket, or waits in an outbox for its peer
// or for the log.
func post(letters []letter, pos uint64) {
	letters = fanOut(letters, pos)
	if len(letters) < spreadFrom {
		send(letters, pos)
		return
	}
	spread(len(letters), func(from, to int) { send(letters[from:to], pos) })
}

// spread does n things on all processors, and returns when they are done.
func spread(n int, do func(from, to int)) {
	workers := runtime.GOMAXPROCS(0)
	each := (n + workers - 1) / workers
	var wg sync.WaitGroup
	from := 0
	for ; from+each < n; from += each {
		first := from
		wg.Go(func() { do(first, first+each) })
	}
	do(from, n)
	wg.Wait()
}

func send(letters []letter, pos uint64) {
	var e encoder
	for i, l := range letters {
		l.to.deliver(l.effect, pos, &e)
		if i+1 == len(letters) || letters[i+1].to != l.to {
			l.to.flush()
		}
	}
}

// encoder encodes a reply once for all who get the same one.
type encoder struct {
	reply *wire.Reply
	frame []byte
	body  *transport.Body
	head  [wire.HeaderLen]byte
}

// frameOf returns the frame that answers e: a header for e alone, good until the next call, and a body that may be shared.
func (c *encoder) frameOf(e core.Effect) (head []byte, body *transport.Body) {
	if c.reply != e.Reply {
		c.reply = e.Reply
		c.frame = wire.AppendReply(nil, e.Op, e.ID, e.Reply)
		c.body = &transport.Body{Bytes: c.frame[wire.HeaderLen:]}
	}
	copy(c.head[:], c.frame)
	wire.Readdress(c.head[:], e.Op, e.ID)
	return c.head[:], c.body
}
