package store

import (
	"io"

	"github.com/muster-pg/muster/wire"
)

// readRoom is the size of a connection's read buffer: small, since most connections are
// idle most of the time. What is larger is read into memory of its own.
const readRoom = 4 << 10

// firstRead is how much of a large body is made room for before any of it has come.
const firstRead = 64 << 10

// frames cuts a stream of bytes into frames.
type frames struct {
	src   io.Reader
	limit uint32 // of a body
	buf   []byte // len is readRoom
	r, w  int    // what is in buf
	err   error  // of the last read, once buf is used up
}

func newFrames(src io.Reader, limit uint32) *frames {
	return &frames{src: src, limit: limit, buf: make([]byte, readRoom)}
}

// next returns the next frame. Its body is good until the next call, or the caller's if
// owned is true. It blocks only when the frame is not whole.
func (f *frames) next() (h wire.Header, body []byte, owned bool, err error) {
	if err := f.fill(wire.HeaderLen); err != nil {
		return h, nil, false, err
	}
	if h, err = wire.ParseHeader(f.buf[f.r:f.w], f.limit); err != nil {
		return h, nil, false, err
	}
	n := wire.HeaderLen + int(h.Len)
	if n > len(f.buf) {
		f.r += wire.HeaderLen
		body, err = f.large(int(h.Len))
		return h, body, true, err
	}
	if err := f.fill(n); err != nil {
		return h, nil, false, unexpected(err)
	}
	body = f.buf[f.r+wire.HeaderLen : f.r+n]
	f.r += n
	return h, body, false, nil
}

// whole reports whether next has a frame without reading.
func (f *frames) whole() bool {
	if f.w-f.r < wire.HeaderLen {
		return false
	}
	h, err := wire.ParseHeader(f.buf[f.r:f.w], f.limit)
	return err != nil || f.w-f.r >= wire.HeaderLen+int(h.Len)
}

// fill reads until n bytes are in buf, which has room for them.
func (f *frames) fill(n int) error {
	if f.w-f.r >= n {
		return nil
	}
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	for f.w < n {
		if f.err != nil {
			if f.w > 0 {
				return unexpected(f.err)
			}
			return f.err
		}
		got, err := f.src.Read(f.buf[f.w:])
		f.w += got
		f.err = err
	}
	return nil
}

// large reads a body of n bytes into memory of its own, which grows as the bytes come: a length alone makes nobody pay.
func (f *frames) large(n int) ([]byte, error) {
	body := make([]byte, min(n, firstRead))
	got := copy(body, f.buf[f.r:f.w])
	f.r += got
	for {
		m, err := io.ReadFull(f.src, body[got:])
		if got += m; err != nil {
			return nil, unexpected(err)
		}
		if got == n {
			return body, nil
		}
		bigger := make([]byte, min(n, 4*len(body)))
		copy(bigger, body)
		body = bigger
	}
}

// unexpected is an end of stream in the middle of something.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
