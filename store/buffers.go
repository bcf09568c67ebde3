package store

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// fitting returns rep, or what a peer gets in its place when ServerLimits.Buffers, or InFlight of this connection, has no room for it: an
// answer may carry many values, each of which is in the store already, and behind a relay many clients share a connection. CodeAgain has the client send the request again. That changes nothing: what waits, and what reads, may be
// asked again, and the answer to a numbered request is kept under its number. A quarter of the buffers is left for small answers, so that a
// peer that takes part of a large one is not cut off for the next small one.
func (c *conn) fitting(rep *wire.Reply) *wire.Reply {
	n := len(rep.Value)
	for _, v := range rep.Values {
		n += len(v)
	}
	most := c.mostLarge()
	switch {
	case n <= unreadPause:
		return rep
	case int64(n) > most:
		return &wire.Reply{Code: wire.CodeFull, Detail: fmt.Sprintf("an answer of %d bytes, and the server's buffers have at most %d for answers: ask for less at once, or raise ServerLimits.Buffers", n, most)}
	case c.server.budget.Used()+int64(n) > most:
		return &wire.Reply{Code: wire.CodeAgain}
	}
	if waiting := c.out.Waiting(); waiting > 0 && waiting+n > c.limits.InFlight {
		return &wire.Reply{Code: wire.CodeAgain}
	}
	return rep
}

// mostLarge is how many bytes of the buffers large answers may have.
func (c *conn) mostLarge() int64 { return c.limits.Buffers - c.limits.Buffers/4 }

// short reports whether the buffers may have no room for the answer to a large Get.
func (c *conn) short() bool { return c.server.budget.Used()+wire.MaxValue > c.mostLarge() }
