package journal

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// checkObsolete makes sure that only a segment of this log is removed.
func (r *recovery) checkObsolete(number uint64) error {
	rd, err := r.open(number)
	if err != nil {
		return err
	}
	_, _, err = r.header(rd)
	if _, damaged := errors.AsType[*DamageError](err); damaged {
		err = nil // its content is not needed
	}
	return errors.Join(err, r.j.seg.close())
}

// open opens a segment, and closes the previous one.
func (r *recovery) open(number uint64) (*reader, error) {
	if err := r.j.seg.close(); err != nil {
		return nil, err
	}
	name := segmentName(r.j.dir, number)
	f, err := r.j.fs.Open(name)
	if err != nil {
		return nil, fileError("open", name, err)
	}
	r.j.seg = segment{file: f, name: name, number: number, preallocate: r.j.preallocate}
	size, err := f.Size()
	if err != nil {
		return nil, fileError("size", name, err)
	}
	r.j.seg.size = size
	return &reader{f: f, size: size}, nil
}

// segment replays a segment. following are the numbers of those after it.
func (r *recovery) segment(number uint64, following []uint64) error {
	if r.ended {
		r.previous, r.first = r.j.seg, r.next
	}
	rd, err := r.open(number)
	if err != nil {
		return err
	}
	r.last, r.ended = 0, false
	h, sum, err := r.header(rd)
	if err != nil {
		return err
	}
	if r.next != 0 && h.first != r.next {
		return r.damaged(0, "it begins with entry %d, but the segment before it ends before entry %d", h.first, r.next)
	}
	r.next = h.first
	r.j.seg.sum, r.j.seg.off = sum, headerLen
	marked, more := false, true
	for more {
		if marked, more, err = r.batch(rd); err != nil {
			return err
		}
	}
	r.j.segments = append(r.j.segments, extent{number, r.j.seg.off})
	if r.ended {
		return nil
	}
	if err := r.tail(rd, marked); err != nil {
		return err
	}
	return r.checkSuccessor(following)
}

// checkSuccessor checks what follows a segment without an end: nothing, or a segment that was
// created and has no entries yet.
func (r *recovery) checkSuccessor(following []uint64) error {
	if len(following) == 0 {
		return nil
	}
	name := segmentName(r.j.dir, following[0])
	unused, err := r.unused(name)
	if err != nil {
		return err
	}
	if !unused || len(following) > 1 || r.torn[1]-r.torn[0] > headLen { // half a mark may be there
		return r.damaged(r.j.seg.off, "a segment follows, before which all was durable")
	}
	r.stale = name
	return nil
}

// unused reports whether a segment has at most a header, complete or not.
func (r *recovery) unused(name string) (bool, error) {
	f, err := r.j.fs.Open(name)
	if err != nil {
		return false, fileError("open", name, err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return false, fileError("size", name, err)
	}
	rd := &reader{f: f, size: size}
	end, err := rd.dataEnd(0)
	if err != nil {
		return false, fileError("read", name, err)
	}
	b, err := rd.at(0, min(size, int64(len(magic))))
	if err != nil {
		return false, fileError("read", name, err)
	}
	for i, c := range b {
		if c != 0 && c != magic[i] {
			return false, refuse(name, ErrForeign, "")
		}
	}
	return end <= headerLen, nil
}

// header reads the header of the segment, and checks that it is of this log.
func (r *recovery) header(rd *reader) (h header, sum uint32, err error) {
	name := r.j.seg.name
	b, err := rd.at(0, min(headerLen, rd.size))
	if err != nil {
		return h, 0, r.readError(err)
	}
	want := header{version: version, store: r.j.store, segment: r.j.seg.number}
	if len(b) < headerLen || string(b[:len(magic)]) != magic {
		if want.torn(b) {
			return h, 0, r.damaged(0, "its header is incomplete")
		}
		return h, 0, refuse(name, ErrForeign, "")
	}
	h, sum, sound := parseHeader(b)
	switch {
	case h.version > version:
		return h, 0, refuse(name, ErrNewer, " (format %d, not %d)", h.version, version)
	case !sound:
		return h, 0, r.damaged(0, "the checksum of its header is wrong")
	case h.store != want.store:
		return h, 0, refuse(name, ErrOtherStore, ": its id is %#x, not %#x", h.store, want.store)
	case h.version != version || h.segment != want.segment || h.first == 0:
		return h, 0, r.damaged(0, "it is segment %d, in format %d", h.segment, h.version)
	}
	return h, sum, nil
}

// batch replays the batch at the current offset of the segment. more reports whether there was one;
// otherwise marked reports whether a mark or an end is there.
func (r *recovery) batch(rd *reader) (marked, more bool, err error) {
	seg := &r.j.seg
	truncated := func() (bool, bool, error) {
		return false, false, r.damaged(seg.off, "the file was truncated, to %d bytes", rd.size)
	}
	if rd.size-seg.off < headLen {
		return truncated()
	}
	b, err := rd.at(seg.off, headLen)
	if err != nil {
		return false, false, r.readError(err)
	}
	h, sound := parseHead(b, seg.sum, seg.off)
	if !sound {
		return false, false, nil
	}
	if h.first != r.next {
		return false, false, r.damaged(seg.off, "its batch begins with entry %d, not %d", h.first, r.next)
	}
	if h.count == 0 {
		r.ended = h.length == endLength
		return true, false, nil
	}
	if rd.size-seg.off < headLen+int64(h.length)+headLen {
		return truncated()
	}
	body, err := rd.at(seg.off+headLen, int64(h.length))
	if err != nil || crc32.Update(seed(seg.sum, seg.off), castagnoli, body) != h.sum {
		return false, false, r.readError(err)
	}
	if err := r.entries(h, body); err != nil {
		return false, false, err
	}
	r.next += uint64(h.count)
	r.last, seg.off = seg.off, seg.off+headLen+int64(h.length)
	return false, true, nil
}

func (r *recovery) entries(h head, body []byte) error {
	n := h.first
	whole, err := eachEntry(body, h.count, func(entry []byte) error {
		if err := r.apply(entry); err != nil {
			return fmt.Errorf("journal: %s: entry %d: %w", r.j.seg.name, n, err)
		}
		n++
		return nil
	})
	if err == nil && !whole {
		err = r.damaged(r.j.seg.off, "its batch is not %d entries", h.count)
	}
	return err
}

// tail examines the bytes behind the last valid batch: zeros, an incomplete batch, or damage.
func (r *recovery) tail(rd *reader, marked bool) error {
	off := r.j.seg.off
	end, err := rd.dataEnd(off)
	if err != nil {
		return r.readError(err)
	}
	if marked { // at least the head of a batch behind the mark has not reached the disk
		r.torn = [2]int64{off + headLen, max(end, off+headLen)}
		return nil
	}
	if end == off {
		return nil
	}
	at, found, err := rd.findHeadAfter(r.j.seg.sum, off, end, r.next)
	if err != nil {
		return r.readError(err)
	}
	if found {
		return r.damaged(off, "what was durable before byte %d is not sound", at)
	}
	torn, err := rd.torn(r.j.seg.sum, off)
	if err != nil {
		return r.readError(err)
	}
	if !torn {
		return r.damaged(off, "the last batch is complete, and not sound")
	}
	r.torn = [2]int64{off, end}
	return nil
}

func (r *recovery) damaged(off int64, reason string, args ...any) error {
	return &DamageError{File: r.j.seg.name, Offset: off, Reason: fmt.Sprintf(reason, args...)}
}

func (r *recovery) readError(err error) error { return fileError("read", r.j.seg.name, err) }
