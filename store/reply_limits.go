package store

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// smallReply is the size up to which a reply to a client of a relay is sent in any case.
const smallReply = 4 << 10

// limitReply returns rep, or what the peer gets instead when ServerLimits.Buffers, or InFlight of this
// connection, has no space for it: a reply may have many values, all of which the store holds
// already, and many clients of a relay share a connection. On CodeAgain the client sends the
// request again. That has no side effects: waits and reads can be repeated, and the reply to a
// numbered request is kept under its number. A quarter of the buffers is reserved for small
// replies, so that a peer that is reading a large reply is not disconnected because of the next
// small one.
func (c *conn) limitReply(rep *wire.Reply) *wire.Reply {
	n := len(rep.Value)
	for _, v := range rep.Values {
		n += len(v)
	}
	most, small := c.maxLargeReplies(), maxUnread
	if c.stream != nil { // the limits of one connection are those of many clients
		small = smallReply
	}
	switch {
	case n <= small:
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

// maxLargeReplies returns how many bytes of the buffers large replies may use.
func (c *conn) maxLargeReplies() int64 { return c.limits.Buffers - c.limits.Buffers/4 }

// lowOnBuffers reports whether the buffers may have no space for the reply to a large Get.
func (c *conn) lowOnBuffers() bool { return c.server.budget.Used()+wire.MaxValue > c.maxLargeReplies() }
