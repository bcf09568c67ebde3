package transport

import (
	"bytes"
	"errors"
)

// ErrBuffers is the error of a connection whose incomplete messages, or whose replies, exceed the
// budget.
var ErrBuffers = errors.New("the server's buffers are full (ServerLimits.Buffers): the peer may try again")

// Inbox has the bytes of a connection that were received and not taken yet. It receives into a buffer
// that it borrows while its user parses, so that idle connections hold none. A message larger than
// that gets memory of its own, which grows as the message arrives: a length alone must not allocate
// memory. One goroutine uses it at a time.
type Inbox struct {
	First  int     // how many bytes are allocated for a large message before more of it has arrived
	Budget *Budget // that large and incomplete messages of all connections count against; nil: no limit

	buf     []byte // borrowed or owned
	owned   bool   // buf is for one large message
	r, w    int    // buf[r:w] is unread
	charged int    // bytes taken from Budget
	full    bool   // the budget was exceeded: the stream cannot continue
}

// charge sets the bytes taken from the budget to n; false if they do not fit.
func (in *Inbox) charge(n int) bool {
	if n == in.charged {
		return true
	}
	if !in.Budget.Reserve(n - in.charged) {
		in.full = true
		return false
	}
	in.charged = n
	return true
}

// Release returns the bytes to the budget after the end of the connection.
func (in *Inbox) Release() { in.charge(0) }

// Unread returns the bytes that were not taken. They are valid until the next call of Room, or, if
// Take returns true, belong to the caller. The error is ErrBuffers.
func (in *Inbox) Unread() ([]byte, error) {
	if in.full {
		return nil, ErrBuffers
	}
	return in.buf[in.r:in.w], nil
}

// Take takes the message that is the first n bytes of Unread. It returns true if the caller owns
// their memory from now on.
func (in *Inbox) Take(n int) (owned bool) {
	in.r += n
	if !in.owned {
		return false
	}
	in.owned = false
	in.buf = bytes.Clone(in.buf[in.r:in.w])
	in.r, in.w = 0, len(in.buf)
	in.charge(in.w)
	return true
}

// Room returns where the next bytes have to be received to: in borrowed if the message at the front of
// Unread, which has at least need bytes, fits. The caller then calls Advance with their number.
func (in *Inbox) Room(borrowed []byte, need int) []byte {
	if in.owned && in.w < len(in.buf) {
		return in.buf[in.w:]
	}
	unread := in.buf[in.r:in.w]
	buf := borrowed
	if in.owned = need > len(borrowed); !in.owned {
		in.charge(0)
	} else {
		n := min(need, max(in.First, 4*len(unread)))
		if !in.charge(n) {
			in.buf, in.r, in.w, in.owned = make([]byte, 1), 0, 0, false // never parsed
			return in.buf
		}
		buf = make([]byte, n)
	}
	in.r, in.w = 0, copy(buf, unread)
	in.buf = buf
	return buf[in.w:]
}

// Advance adds n bytes that were received to what Room returned.
func (in *Inbox) Advance(n int) { in.w += n }

// uncharged is how many unread bytes of each connection do not count against the budget: that a small
// message arrives in pieces ends no connection.
const uncharged = 512

// Compact copies the unread bytes, so that the borrowed buffer can be used for another connection.
func (in *Inbox) Compact() {
	if n := in.w - in.r; in.owned || in.full || n > uncharged && !in.charge(n) {
		return
	}
	in.buf = bytes.Clone(in.buf[in.r:in.w])
	in.r, in.w = 0, len(in.buf)
}
