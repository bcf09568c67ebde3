package journal

import (
	"errors"
	"fmt"
)

// leftOver sees to it that only a segment of this log will be removed.
func (r *recovery) leftOver(number uint64) error {
	rd, err := r.open(number)
	if err != nil {
		return err
	}
	_, _, err = r.header(rd)
	if _, damaged := errors.AsType[*DamageError](err); damaged {
		err = nil // nobody needs it
	}
	return errors.Join(err, r.j.seg.close())
}

// open opens a segment in place of the one before.
func (r *recovery) open(number uint64) (*reader, error) {
	if err := r.j.seg.close(); err != nil {
		return nil, err
	}
	name := segmentName(r.j.dir, number)
	f, err := r.j.fs.Open(name)
	if err != nil {
		return nil, named("open", name, err)
	}
	r.j.seg = segment{file: f, name: name, number: number, ahead: r.j.ahead}
	size, err := f.Size()
	if err != nil {
		return nil, named("size", name, err)
	}
	r.j.seg.end = size
	return &reader{f: f, size: size}, nil
}

// segment replays a segment.
func (r *recovery) segment(number uint64, last bool) error {
	rd, err := r.open(number)
	if err != nil {
		return err
	}
	r.last = 0
	if last {
		if err := r.unbegun(rd); err != nil || r.torn {
			return err
		}
	}
	h, sum, err := r.header(rd)
	if err != nil {
		return err
	}
	if r.next != 0 && h.first != r.next {
		return r.damaged(0, "it begins with record %d, but the segment before it ends before record %d", h.first, r.next)
	}
	r.next = h.first
	r.j.seg.sum, r.j.seg.off = sum, headerLen
	for more := true; more; {
		if more, err = r.batch(rd); err != nil {
			return err
		}
	}
	r.j.live = append(r.j.live, extent{number, r.j.seg.off})
	return r.tail(rd, last)
}

// unbegun looks whether a crash has left the last segment without a whole header.
func (r *recovery) unbegun(rd *reader) error {
	b, err := rd.at(0, min(headerLen, rd.size))
	if err != nil {
		return r.unread(err)
	}
	h := header{version: version, store: r.j.store, segment: r.j.seg.number}
	if len(b) == headerLen {
		if _, _, sound := parseHeader(b); sound {
			return nil
		}
	}
	if !h.torn(b) {
		return nil
	}
	end, err := rd.used(0)
	if err != nil {
		return r.unread(err)
	}
	r.torn, r.cut = end <= headerLen, end
	return nil
}

// header reads the header of the segment, and checks that it is this log's.
func (r *recovery) header(rd *reader) (h header, sum uint32, err error) {
	name := r.j.seg.name
	b, err := rd.at(0, min(headerLen, rd.size))
	if err != nil {
		return h, 0, r.unread(err)
	}
	want := header{version: version, store: r.j.store, segment: r.j.seg.number}
	if len(b) < headerLen || string(b[:len(magic)]) != magic {
		if want.torn(b) {
			return h, 0, r.damaged(0, "its header is incomplete, but it is not the end of the log")
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
	case h.segment != want.segment || h.version != version || h.first == 0:
		return h, 0, r.damaged(0, "it is segment %d of format %d", h.segment, h.version)
	}
	return h, sum, nil
}

// batch replays the batch at the offset of the segment, and reports whether there is one.
func (r *recovery) batch(rd *reader) (ok bool, err error) {
	seg := &r.j.seg
	if rd.size-seg.off < batchLen {
		return false, nil
	}
	b, err := rd.at(seg.off, batchLen)
	if err != nil {
		return false, r.unread(err)
	}
	h := parseBatchHead(b)
	if !h.fits(rd.size - seg.off) {
		return false, nil
	}
	if sound, err := rd.sound(h, seg.sum, seg.off); err != nil || !sound {
		return false, r.unread(err)
	}
	if h.first != r.next {
		return false, r.damaged(seg.off, "its batch begins with record %d, not %d", h.first, r.next)
	}
	body, err := rd.at(seg.off+batchLen, int64(h.length))
	if err != nil {
		return false, r.unread(err)
	}
	if err := r.records(h, body); err != nil {
		return false, err
	}
	r.next += uint64(h.count)
	r.last, seg.off = seg.off, seg.off+batchLen+int64(h.length)
	return true, nil
}

func (r *recovery) records(h batchHead, body []byte) error {
	n := h.first
	whole, err := eachRecord(body, h.count, func(record []byte) error {
		if err := r.apply(record); err != nil {
			return fmt.Errorf("journal: %s: record %d: %w", r.j.seg.name, n, err)
		}
		n++
		return nil
	})
	if err == nil && !whole {
		err = r.damaged(r.j.seg.off, "its batch is not %d records", h.count)
	}
	return err
}

// tail looks at what is behind the last sound batch: zeros, a batch that was not finished, or damage.
func (r *recovery) tail(rd *reader, last bool) error {
	off := r.j.seg.off
	end, err := rd.used(off)
	if err != nil || end == off {
		return r.unread(err)
	}
	if !last {
		return r.damaged(off, "a segment follows, before which all was durable")
	}
	at, found, err := rd.behind(r.j.seg.sum, off, end, r.next)
	if err != nil {
		return r.unread(err)
	}
	if found {
		return r.damaged(off, "a sound batch follows at byte %d", at)
	}
	r.cut = end - off
	return nil
}

func (r *recovery) damaged(off int64, reason string, args ...any) error {
	return &DamageError{File: r.j.seg.name, Offset: off, Reason: fmt.Sprintf(reason, args...)}
}

func (r *recovery) unread(err error) error { return named("read", r.j.seg.name, err) }
