package shm

import (
	"encoding/binary"
	"fmt"
)

// The protocol: each side sends frames, little-endian, over a stream socket.
//
//	magic u16 | version u8 | kind u8 | count u32 | count records of the kind's size
//
// The frame of a segment is sent by one sendmsg of its own, with the segment's descriptor. To share
// a ref sends nothing but its segment, once: the callers exchange the ref. A return releases
// exactly its ref, once. A drop is sent when nothing of the segment is shared.
const (
	magic   = 0x4d73 // "sM"
	version = 1

	header  = 8
	maxBody = 64 << 10

	kindSegment kind = 1 // arena u64, segment u32, 0 u32, size u64; one, with its descriptor
	kindReturn  kind = 2 // arena u64, segment u32, 0 u32, offset u64, len u64
	kindDrop    kind = 3 // arena u64, segment u32, 0 u32
)

// Limits of what one side can make the other hold.
const (
	maxShares   = 1 << 20 // refs over a Conn that are not released
	maxSegments = 4096
	maxMapped   = 1 << 44 // bytes of address space; also the largest segment
)

type kind uint8

// sizes are those of the records; 0 is no kind.
var sizes = [...]int{kindSegment: 24, kindReturn: 32, kindDrop: 16}

// key names a segment among those that a peer has sent.
type key struct {
	arena   uint64
	segment uint32
}

func (r Ref) key() key { return key{r.Arena, r.Segment} }

// frame is one that has arrived.
type frame struct {
	kind kind
	body []byte // whole records, at least one; of the buffer that was parsed
}

// parse takes a frame from the beginning of b, and says how long it is: 0 if it is not all there.
func parse(b []byte) (f frame, n int, err error) {
	if len(b) < header {
		return frame{}, 0, nil
	}
	if binary.LittleEndian.Uint16(b) != magic {
		return frame{}, 0, fmt.Errorf("% x is not the beginning of a message: is the peer a Conn?", b[:header])
	}
	if b[2] != version {
		return frame{}, 0, fmt.Errorf("the peer has version %d, this process has %d", b[2], version)
	}
	f.kind = kind(b[3])
	count := int64(binary.LittleEndian.Uint32(b[4:]))
	if int(f.kind) >= len(sizes) || sizes[f.kind] == 0 {
		return frame{}, 0, fmt.Errorf("there is no kind %d of message", f.kind)
	}
	body := count * int64(sizes[f.kind])
	if count == 0 || body > maxBody || f.kind == kindSegment && count > 1 {
		return frame{}, 0, fmt.Errorf("%d records in a message of kind %d", count, f.kind)
	}
	if int64(len(b)-header) < body {
		return frame{}, 0, nil
	}
	n = header + int(body)
	f.body = b[header:n]
	return f, n, nil
}

// appendHeader begins a frame; the records follow.
func appendHeader(b []byte, k kind, count int) []byte {
	b = binary.LittleEndian.AppendUint16(b, magic)
	b = append(b, version, byte(k))
	return binary.LittleEndian.AppendUint32(b, uint32(count))
}

// maxRecords is how many a frame can have.
func maxRecords(k kind) int { return maxBody / sizes[k] }

func appendKey(b []byte, k key) []byte {
	b = binary.LittleEndian.AppendUint64(b, k.arena)
	return binary.LittleEndian.AppendUint64(b, uint64(k.segment))
}

func appendSegment(b []byte, k key, size int64) []byte {
	return binary.LittleEndian.AppendUint64(appendKey(b, k), uint64(size))
}

func appendRef(b []byte, r Ref) []byte {
	b = binary.LittleEndian.AppendUint64(appendKey(b, r.key()), uint64(r.Offset))
	return binary.LittleEndian.AppendUint64(b, uint64(r.Len))
}

// readKey refuses a key whose last four bytes are not 0.
func readKey(b []byte) (key, error) {
	if pad := binary.LittleEndian.Uint32(b[12:]); pad != 0 {
		return key{}, fmt.Errorf("%#x where 0 is due", pad)
	}
	return key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])}, nil
}

func readRef(b []byte) (Ref, error) {
	k, err := readKey(b)
	offset, n := int64(binary.LittleEndian.Uint64(b[16:])), int64(binary.LittleEndian.Uint64(b[24:]))
	return Ref{k.arena, k.segment, offset, n}, err
}
