package handshake

import (
	"net"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// MaxFrame bounds the body of a frame of a handshake, in bytes: a name, a token, a nonce, a proof.
const MaxFrame = 32 << 10

// FrameReader splits a stream of bytes into frames.
type FrameReader struct {
	transport.Inbox
	Limit uint32 // of a body, in bytes
}

// Buffer returns where the next bytes have to be read to. The caller then calls Advance with their
// number.
func (f *FrameReader) Buffer(borrowed []byte) []byte {
	need := wire.HeaderLen
	if h, ok := f.Peek(); ok {
		need += int(h.Len)
	}
	return f.Room(borrowed, need)
}

// Peek returns the header of the next frame, if it has arrived.
func (f *FrameReader) Peek() (h wire.Header, ok bool) {
	b, err := f.Unread()
	if err != nil || len(b) < wire.HeaderLen {
		return h, false
	}
	h, err = wire.ParseHeader(b, f.Limit)
	return h, err == nil
}

// Next returns the next complete frame. Its body is valid until the next call of Buffer, or belongs
// to the caller if owned is true.
func (f *FrameReader) Next() (h wire.Header, body []byte, owned, ok bool, err error) {
	b, err := f.Unread()
	if err != nil || len(b) < wire.HeaderLen {
		return h, nil, false, false, err
	}
	if h, err = wire.ParseHeader(b, f.Limit); err != nil {
		return h, nil, false, false, err
	}
	n := wire.HeaderLen + int(h.Len)
	if len(b) < n {
		return h, nil, false, false, nil
	}
	return h, b[wire.HeaderLen:n:n], f.Take(n), true, nil
}

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
