package journal

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
)

// window is how many bytes of a file are read at once.
const window = 256 << 10

// reader reads a segment piece by piece. It allocates no more than the file has.
type reader struct {
	f    File
	size int64

	buf   []byte // bytes from offset start on
	start int64
}

// at returns n bytes at off, which must be in the file. They are valid until the next call.
func (r *reader) at(off, n int64) ([]byte, error) {
	if off < r.start || off+n > r.start+int64(len(r.buf)) {
		want := int(min(max(n, window), r.size-off))
		r.start, r.buf = off, slices.Grow(r.buf[:0], want)[:want]
		if got, err := r.f.ReadAt(r.buf, off); got < want {
			r.buf = nil
			return nil, short(err)
		}
	}
	return r.buf[off-r.start:][:n:n], nil
}

func short(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // what a reader returns is io.EOF itself
		return io.ErrUnexpectedEOF
	}
	return err
}

// dataEnd returns the offset after the last byte from off on that is not zero, or off if all are
// zero.
func (r *reader) dataEnd(off int64) (end int64, err error) {
	end = off
	for off < r.size {
		n := min(window, r.size-off)
		b, err := r.at(off, n)
		if err != nil {
			return 0, err
		}
		if !bytes.Equal(b, zeros[:n]) { // faster than TrimRight by far, and most windows are of zeros
			end = off + int64(len(bytes.TrimRight(b, "\x00")))
		}
		off += n
	}
	return end, nil
}

// findHeadAfter looks for a valid head between off and end, after a damaged batch at off that
// should have begun with entry next. Each entry that is lost takes at least entryLen bytes,
// which rules out most false matches.
func (r *reader) findHeadAfter(sum uint32, off, end int64, next uint64) (at int64, found bool, err error) {
	for at = off + 1; at < end && at+headLen <= r.size; at++ { // the end of a head may be zeros
		b, err := r.at(at, headLen)
		if err != nil {
			return 0, false, err
		}
		first := binary.LittleEndian.Uint64(b[12:])
		if first <= next || first-next > uint64(at-off)/entryLen {
			continue
		}
		if _, sound := parseHead(b, sum, at); sound {
			return at, true, nil
		}
	}
	return 0, false, nil
}

// torn reports whether the bytes at off, where a batch should begin, may be what a crash has left
// of an incomplete write: one of their sectors is still zero, or, without a valid head, the head is
// split between two sectors, one of which may have the old mark.
func (r *reader) torn(sum uint32, off int64) (bool, error) {
	b, err := r.at(off, headLen)
	if err != nil {
		return false, err
	}
	end := off + headLen
	if h, sound := parseHead(b, sum, off); sound {
		end += int64(h.length)
	} else if off/sector != (end-1)/sector {
		return true, nil
	}
	for off < end {
		n := min(sector-off%sector, end-off)
		b, err := r.at(off, n)
		if err != nil || len(bytes.TrimRight(b, "\x00")) == 0 {
			return true, err
		}
		off += n
	}
	return false, nil
}
