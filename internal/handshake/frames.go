package handshake

import (
	"bytes"
	"errors"
	"net"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// MaxFrame bounds the body of a frame of a handshake, in bytes: a name, a token, a nonce, a proof.
const MaxFrame = 32 << 10

// FrameReader splits a stream of bytes into frames. It reads into a buffer that it borrows while it
// parses, so that idle connections hold none. A frame larger than that gets memory of its own,
// which grows as the frame arrives: a length alone must not allocate memory. One goroutine uses it at
// a time.
type FrameReader struct {
	Limit  uint32            // of a body, in bytes
	First  int               // how many bytes are allocated for a large frame before more of it has arrived
	Budget *transport.Budget // that large and incomplete frames of all connections count against; nil: no limit

	buf   []byte // shared or owned
	owned bool   // buf is owned, for one large frame
	r, w  int    // read and write positions in buf

	charged   int  // bytes taken from Budget
	exhausted bool // the budget was exceeded: the stream cannot continue
}

// charge sets the bytes taken from the budget to n; false if they do not fit.
func (f *FrameReader) charge(n int) bool {
	f.exhausted = f.exhausted || n > f.charged && !f.Budget.Fits(n-f.charged)
	if f.exhausted {
		return false
	}
	f.Budget.Take(n - f.charged)
	f.charged = n
	return true
}

// Release returns the bytes to the budget after the end of the connection.
func (f *FrameReader) Release() {
	f.Budget.Take(-f.charged)
	f.charged = 0
}

// ErrBuffers is the error of a connection whose frames exceed the budget.
var ErrBuffers = errors.New("the server's buffers are full (ServerLimits.Buffers): the peer may try again")

// Buffer returns where the next bytes have to be read to. The caller then calls Advance with their
// number.
func (f *FrameReader) Buffer(borrowed []byte) []byte {
	pending := f.buf[f.r:f.w]
	need := wire.HeaderLen
	if len(pending) >= wire.HeaderLen {
		if h, err := wire.ParseHeader(pending, f.Limit); err == nil {
			need += int(h.Len)
		}
	}
	if f.owned && f.w < len(f.buf) {
		return f.buf[f.w:]
	}
	buf := borrowed
	if f.owned = need > len(borrowed); f.owned {
		n := min(need, max(f.First, 4*len(pending)))
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

// Advance takes n bytes that were read into what Buffer returned.
func (f *FrameReader) Advance(n int) { f.w += n }

// Next returns the next complete frame. Its body is valid until the next call of Buffer, or belongs
// to the caller if owned is true.
func (f *FrameReader) Next() (h wire.Header, body []byte, owned, ok bool, err error) {
	if f.exhausted {
		return h, nil, false, false, ErrBuffers
	}
	if f.w-f.r < wire.HeaderLen {
		return h, nil, false, false, nil
	}
	if h, err = wire.ParseHeader(f.buf[f.r:f.w], f.Limit); err != nil {
		return h, nil, false, false, err
	}
	n := wire.HeaderLen + int(h.Len)
	if f.w-f.r < n {
		return h, nil, false, false, nil
	}
	body = f.buf[f.r+wire.HeaderLen : f.r+n : f.r+n]
	f.r += n
	if owned = f.owned; owned {
		f.Release()
		*f = FrameReader{Limit: f.Limit, First: f.First, Budget: f.Budget}
	}
	return h, body, owned, true, nil
}

// Peek returns the header of the next frame, if it has arrived.
func (f *FrameReader) Peek() (h wire.Header, ok bool) {
	if f.w-f.r < wire.HeaderLen {
		return h, false
	}
	h, err := wire.ParseHeader(f.buf[f.r:f.w], f.Limit)
	return h, err == nil
}

// Compact copies the unparsed rest, so that the shared buffer can be used for another connection.
func (f *FrameReader) Compact() {
	if f.owned || f.exhausted || !f.charge(f.w-f.r) {
		return
	}
	f.buf = bytes.Clone(f.buf[f.r:f.w])
	f.r, f.w = 0, len(f.buf)
}

// Unread returns the bytes that Next has not returned. They are valid until the next call of Buffer.
func (f *FrameReader) Unread() []byte { return f.buf[f.r:f.w] }

// Read reads from conn, into buf where a frame fits, until Next returns one.
func (f *FrameReader) Read(conn net.Conn, buf []byte) (h wire.Header, body []byte, owned bool, err error) {
	for {
		h, body, owned, ok, err := f.Next()
		if ok || err != nil {
			return h, body, owned, err
		}
		n, err := conn.Read(f.Buffer(buf))
		if f.Advance(n); n == 0 && err != nil {
			return h, nil, false, err
		}
	}
}
