package store

import (
	"bytes"

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
}

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
		buf = make([]byte, min(need, max(firstRoom, 4*len(pending))))
	}
	f.r, f.w = 0, copy(buf, pending)
	f.buf = buf
	return buf[f.w:]
}

func (f *frames) got(n int) { f.w += n }

// next gives the next frame that is whole. Its body is good until room is called, or the caller's if owned is true.
func (f *frames) next() (h wire.Header, body []byte, owned, ok bool, err error) {
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
		*f = frames{limit: f.limit}
	}
	return h, body, owned, true, nil
}

// giveBack keeps what is left over, so that the borrowed buffer can be used for others.
func (f *frames) giveBack() {
	if f.own {
		return
	}
	f.buf = bytes.Clone(f.buf[f.r:f.w])
	f.r, f.w = 0, len(f.buf)
}
