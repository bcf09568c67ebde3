package store

import (
	"bytes"
	"errors"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// firstRoom is how much room is made for a large frame before any more of it has come.
const firstRoom = 64 << 10

// frames cuts a stream of bytes into frames. The bytes are read into a buffer that is borrowed for
// as long as they are looked at, so that idle connections hold none; a frame that is too large for
// it gets memory of its own, which grows as the frame comes: a length alone makes nobody pay.
type frames struct {
	limit uint32 // of a body
	buf   []byte // borrowed, or its own
	own   bool   // buf is for one large frame, and not borrowed
	r, w  int    // what is in buf

	budget *transport.Budget // of all connections; nil is none
	held   int               // bytes that it is charged
	over   bool              // there was not enough: the stream cannot go on
}

// charge has the budget bear n bytes, instead of those before; false if they are too many.
func (f *frames) charge(n int) bool {
	f.over = f.over || n > f.held && !f.budget.Fits(n-f.held)
	if f.over {
		return false
	}
	f.budget.Take(n - f.held)
	f.held = n
	return true
}

// drop gives up what has come of a frame: the connection has ended.
func (f *frames) drop() {
	f.budget.Take(-f.held)
	f.held = 0
}

// errBuffers is the end of a connection for whose frames there is no memory.
var errBuffers = errors.New("the server's buffers are full (ServerLimits.Buffers): the peer may try again")

// room is where the next bytes are to be read to; got takes them.
func (f *frames) room(borrowed []byte) []byte {
	pending := f.buf[f.r:f.w]
	need := wire.HeaderLen
	if len(pending) >= wire.HeaderLen {
		if h, err := wire.ParseHeader(pending, f.limit); err == nil {
			need += int(h.Len)
		}
	}
	if f.own && f.w < len(f.buf) {
		return f.buf[f.w:]
	}
	buf := borrowed
	if f.own = need > len(borrowed); f.own {
		n := min(need, max(firstRoom, 4*len(pending)))
		if !f.charge(n) {
			f.buf, f.r, f.w, f.own = make([]byte, 1), 0, 0, false // nothing of it is looked at
			return f.buf
		}
		buf = make([]byte, n)
	}
	f.r, f.w = 0, copy(buf, pending)
	f.buf = buf
	return buf[f.w:]
}

func (f *frames) got(n int) { f.w += n }

// next gives the next frame that is whole. Its body is good until room is called, or the caller's if owned is true.
func (f *frames) next() (h wire.Header, body []byte, owned, ok bool, err error) {
	if f.over {
		return h, nil, false, false, errBuffers
	}
	if f.w-f.r < wire.HeaderLen {
		return h, nil, false, false, nil
	}
	if h, err = wire.ParseHeader(f.buf[f.r:f.w], f.limit); err != nil {
		return h, nil, false, false, err
	}
	n := wire.HeaderLen + int(h.Len)
	if f.w-f.r < n {
		return h, nil, false, false, nil
	}
	body = f.buf[f.r+wire.HeaderLen : f.r+n : f.r+n]
	f.r += n
	if owned = f.own; owned {
		f.drop()
		*f = frames{limit: f.limit, budget: f.budget}
	}
	return h, body, owned, true, nil
}

// op is that of the next frame, if its header is there; 0 is none.
func (f *frames) op() wire.Op {
	if f.w-f.r < wire.HeaderLen {
		return 0
	}
	h, err := wire.ParseHeader(f.buf[f.r:f.w], f.limit)
	if err != nil {
		return 0
	}
	return h.Op
}

// giveBack keeps what is left over, so that the borrowed buffer can be used for others.
func (f *frames) giveBack() {
	if f.own || f.over || !f.charge(f.w-f.r) {
		return
	}
	f.buf = bytes.Clone(f.buf[f.r:f.w])
	f.r, f.w = 0, len(f.buf)
}
