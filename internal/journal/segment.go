package journal

// aheadDefault is how many zeros are written ahead, so that fdatasync has a new size and new blocks to
// make durable once a MiB, and not each time. On ext4 on a virtual disk with Linux 6.18, 100 bytes took one
// caller 155 µs without and 100 µs with it, and 50 callers had 140,000 and 215,000 of them a second. Each
// MiB makes one Sync some 4 ms longer; 16 MiB would be no faster, and make it 50. That fallocate does as
// well is true of small batches alone: of blocks that were never written, the first write is a change too.
const aheadDefault = 1 << 20

var zeros [64 << 10]byte

// segment is the file that is written. Whoever has the journal's turn owns it.
type segment struct {
	file   File
	name   string
	number uint64
	sum    uint32 // of its header
	off    int64  // behind the last batch, where the mark is
	end    int64  // of the file: zeros from off on
	ahead  int64
	head   [headLen]byte // room for a mark
}

// begin writes the header.
func (s *segment) begin(h header) error {
	b := h.append(nil)
	_, s.sum, _ = parseHeader(b)
	return s.sync(b)
}

// write appends the batch b, makes it durable, and marks it. next is the sequence after it. The mark is not synced: it is
// there if the process is killed, and after a loss of power if the system has written it meanwhile.
func (s *segment) write(b []byte, next uint64) error {
	if err := s.sync(b); err != nil {
		return err
	}
	return s.mark(markLength, next)
}

// sync appends b, and returns when it is durable.
func (s *segment) sync(b []byte) error {
	if _, err := s.file.WriteAt(b, s.off); err != nil {
		return named("write", s.name, err)
	}
	off := s.off + int64(len(b))
	if err := s.extend(off + headLen); err != nil {
		return named("write", s.name, err)
	}
	if err := s.file.Sync(); err != nil {
		return named("sync", s.name, err)
	}
	s.off = off
	return nil
}

// mark writes a head without records at the offset, for which there are zeros, where the next batch will overwrite it.
func (s *segment) mark(length uint32, next uint64) error {
	head{length: length, first: next}.put(s.head[:], s.sum, s.off)
	_, err := s.file.WriteAt(s.head[:], s.off)
	return named("write", s.name, err)
}

// finish makes durable that the log continues in the next segment, with the record next, and gives back the zeros ahead: segments
// stay for as long as no checkpoint succeeds, and on a disk that is nearly full there may be many.
func (s *segment) finish(next uint64) error {
	if err := s.mark(endLength, next); err != nil {
		return err
	}
	if used := s.off + headLen; used < s.end {
		if err := s.file.Truncate(used); err != nil {
			return named("truncate", s.name, err)
		}
	}
	return named("sync", s.name, s.file.Sync())
}

// extend writes zeros from off on, if the file ends there.
func (s *segment) extend(off int64) error {
	if off <= s.end {
		return nil
	}
	end := (off + s.ahead - 1) / s.ahead * s.ahead
	for at := off; at < end; {
		n, err := s.file.WriteAt(zeros[:min(int64(len(zeros)), end-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	s.end = end
	return nil
}

func (s *segment) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return named("close", s.name, err)
}
