package hostmem

import "slices"

// space allocates a rank's memory for payloads. It is a ring that prefers its beginning: if ranks
// keep up, two or three payloads stay in the processor's cache instead of all of the memory.
type space struct {
	live []extent // in the order of records
}

// extent is the memory of a payload.
type extent struct {
	seq     uint64
	at, end int
}

// reserve returns the offset of size bytes for record seq, in a memory of total bytes. Payloads of
// records up to passed are free.
func (s *space) reserve(seq, passed uint64, size, total int) (at int, ok bool) {
	if size == 0 {
		return 0, true
	}
	s.live = slices.DeleteFunc(s.live, func(e extent) bool { return e.seq <= passed })
	size = (size + payloadGap - 1) / payloadGap * payloadGap
	if len(s.live) > 0 {
		first, last := s.live[0], s.live[len(s.live)-1]
		limit := total
		switch at = last.end; {
		case first.at > last.at: // the ring has wrapped
			limit = first.at
		case size <= first.at:
			at = 0
		}
		if at+size > limit {
			return 0, false
		}
	}
	s.live = append(s.live, extent{seq, at, at + size})
	return at, true
}
