package journal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
)

// MaxEntry is the largest entry, in bytes.
const MaxEntry = 1 << 30

const (
	magic     = "musterJL"
	version   = 2
	headerLen = 40
	headLen   = 24  // of a batch before its body, of a mark, and of an end
	entryLen  = 4   // of an entry before its bytes
	sector    = 512 // the least number of bytes that a disk writes atomically
)

// Lengths of a head without entries.
const (
	markLength = 0
	endLength  = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the beginning of a segment.
type header struct {
	version               uint32
	store, segment, first uint64
}

func (h header) append(b []byte) []byte {
	start := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, h.version)
	b = binary.LittleEndian.AppendUint64(b, h.store)
	b = binary.LittleEndian.AppendUint64(b, h.segment)
	b = binary.LittleEndian.AppendUint64(b, h.first)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parseHeader parses a header off b, which has its length. valid reports whether the checksum
// matches. A newer version may have its checksum elsewhere.
func parseHeader(b []byte) (h header, sum uint32, valid bool) {
	h.version = binary.LittleEndian.Uint32(b[8:])
	h.store = binary.LittleEndian.Uint64(b[12:])
	h.segment = binary.LittleEndian.Uint64(b[20:])
	h.first = binary.LittleEndian.Uint64(b[28:])
	sum = binary.LittleEndian.Uint32(b[36:])
	return h, sum, sum == crc32.Checksum(b[:36], castagnoli)
}

// torn reports whether b may be a header that a crash has left incomplete: the bytes of h, or
// zeros. The sequence number of the first entry need not be known.
func (h header) torn(b []byte) bool {
	whole := h.append(nil)
	for i, c := range b[:min(len(b), 28)] {
		if c != 0 && c != whole[i] {
			return false
		}
	}
	return true
}

// head is the beginning of a batch, a mark or an end.
type head struct {
	sum    uint32 // of the body
	length uint32 // of the body
	first  uint64
	count  uint32 // 0: there is no body
}

// parseHead parses the head b, at offset off of the segment whose header has the checksum sum.
// valid reports whether its checksum matches, and its fields are possible.
func parseHead(b []byte, sum uint32, off int64) (h head, valid bool) {
	h = head{
		sum:    binary.LittleEndian.Uint32(b[4:]),
		length: binary.LittleEndian.Uint32(b[8:]),
		first:  binary.LittleEndian.Uint64(b[12:]),
		count:  binary.LittleEndian.Uint32(b[20:]),
	}
	if h.count == 0 && h.length > endLength || int64(h.length) < entryLen*int64(h.count) {
		return h, false
	}
	return h, binary.LittleEndian.Uint32(b) == crc32.Update(seed(sum, off), castagnoli, b[4:headLen])
}

// put writes h to the beginning of b.
func (h head) put(b []byte, sum uint32, off int64) {
	binary.LittleEndian.PutUint32(b[4:], h.sum)
	binary.LittleEndian.PutUint32(b[8:], h.length)
	binary.LittleEndian.PutUint64(b[12:], h.first)
	binary.LittleEndian.PutUint32(b[20:], h.count)
	binary.LittleEndian.PutUint32(b, crc32.Update(seed(sum, off), castagnoli, b[4:headLen]))
}

// sealBatch writes the head of the batch b, which has space for it and will be at offset off of the
// segment whose header has the checksum sum.
func sealBatch(b []byte, sum uint32, off int64, first uint64, count uint32) {
	body := b[headLen:]
	head{
		sum: crc32.Update(seed(sum, off), castagnoli, body), length: uint32(len(body)), first: first, count: count,
	}.put(b, sum, off)
}

// seed returns the checksum that those of a batch continue from.
func seed(sum uint32, off int64) uint32 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(off))
	return crc32.Update(sum, castagnoli, b[:])
}

// eachEntry calls f with the entries in body, and reports whether body has exactly count entries.
func eachEntry(body []byte, count uint32, f func([]byte) error) (whole bool, err error) {
	for ; count > 0 && len(body) >= entryLen; count-- {
		n := binary.LittleEndian.Uint32(body)
		body = body[entryLen:]
		if int64(n) > int64(len(body)) {
			return false, nil
		}
		if err := f(body[:n:n]); err != nil {
			return true, err
		}
		body = body[n:]
	}
	return count == 0 && len(body) == 0, nil
}

func segmentName(dir string, number uint64) string {
	return filepath.Join(dir, fmt.Sprintf("log-%016x", number))
}

// segmentNumber returns the number of the segment file with this name, if it is one.
func segmentNumber(name string) (number uint64, ok bool) {
	if _, err := fmt.Sscanf(name, "log-%016x", &number); err != nil {
		return 0, false
	}
	return number, name == segmentName("", number)
}
