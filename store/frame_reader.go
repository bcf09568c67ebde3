package store

import (
	"bytes"
	"errors"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// How much is allocated for a large frame before more of it has arrived: by a server, for any of its
// peers, and by a client, which has one connection, to a store that it has authenticated. Growing a
// buffer copies it, and leaves garbage: for a reply of 680 KB that took a client as long as all the
// rest.
const (
	serverFirstAlloc = 64 << 10
	clientFirstAlloc = 1 << 20
)

// frameReader splits a stream of bytes into frames. It reads into a buffer that it borrows while it
// parses, so that idle connections hold none. A frame larger than that gets memory of its own,
// which grows as the frame arrives: a length alone must not allocate memory.
type frameReader struct {
	limit uint32 // of a body, in bytes
	first int    // serverFirstAlloc or clientFirstAlloc
	buf   []byte // shared or owned
	owned bool   // buf is owned, for one large frame
	r, w  int    // read and write positions in buf

	budget    *transport.Budget // of all connections; nil: no limit
	charged   int               // bytes taken from budget
	exhausted bool              // the budget was exceeded: the stream cannot continue
}

// charge sets the bytes taken from the budget to n; false if they do not fit.
func (f *frameReader) charge(n int) bool {
	f.exhausted = f.exhausted || n > f.charged && !f.budget.Fits(n-f.charged)
	if f.exhausted {
		return false
	}
	f.budget.Take(n - f.charged)
	f.charged = n
	return true
}

// release returns the bytes to the budget after the end of the connection.
func (f *frameReader) release() {
	f.budget.Take(-f.charged)
	f.charged = 0
}

// errBuffers is the error of a connection whose frames exceed the budget.
var errBuffers = errors.New("the server's buffers are full (ServerLimits.Buffers): the peer may try again")

// buffer returns where the next bytes have to be read to. The caller then calls advance with their
// number.
func (f *frameReader) buffer(borrowed []byte) []byte {
	pending := f.buf[f.r:f.w]
	need := wire.HeaderLen
	if len(pending) >= wire.HeaderLen {
		if h, err := wire.ParseHeader(pending, f.limit); err == nil {
			need += int(h.Len)
		}
	}
	if f.owned && f.w < len(f.buf) {
		return f.buf[f.w:]
	}
	buf := borrowed
	if f.owned = need > len(borrowed); f.owned {
		n := min(need, max(f.first, 4*len(pending)))
		if !f.charge(n) {
			f.buf, f.r, f.w, f.owned = make([]byte, 1), 0, 0, false // never parsed
			return f.buf
		}
		buf = make([]byte, n)
	}
	f.r, f.w = 0, copy(buf, pending)
	f.buf = buf
	return buf[f.w:]
}

func (f *frameReader) advance(n int) { f.w += n }

// next returns the next complete frame. Its body is valid until the next call of buffer, or belongs
// to the caller if owned is true.
func (f *frameReader) next() (h wire.Header, body []byte, owned, ok bool, err error) {
	if f.exhausted {
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
	if owned = f.owned; owned {
		f.release()
		*f = frameReader{limit: f.limit, first: f.first, budget: f.budget}
	}
	return h, body, owned, true, nil
}

// peek returns the header of the next frame, if it has arrived.
func (f *frameReader) peek() (h wire.Header, ok bool) {
	if f.w-f.r < wire.HeaderLen {
		return h, false
	}
	h, err := wire.ParseHeader(f.buf[f.r:f.w], f.limit)
	return h, err == nil
}

// compact copies the unparsed rest, so that the shared buffer can be used for another connection.
func (f *frameReader) compact() {
	if f.owned || f.exhausted || !f.charge(f.w-f.r) {
		return
	}
	f.buf = bytes.Clone(f.buf[f.r:f.w])
	f.r, f.w = 0, len(f.buf)
}
