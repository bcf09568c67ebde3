package hostmem

import (
	"context"
	"encoding/binary"
	"sync/atomic"

	"github.com/muster-pg/muster/wire"
)

// The memory has these parts, each aligned to a cache line at least. Words are in the host's byte
// order, and heads little-endian.
//
//	words      8 B each: see wordToken and below
//	states     8 B for each record in the window, by seq modulo window
//	ranks      for each rank: words (see wordPassed and below), heads, payloads
//	slots      for each pair of ranks: see pairState
//
// A head describes what a rank posted for a record, by seq modulo heads:
//
//	seq u64 | offset u32 | length u32 of the payload | length u16 of the call | call
//
// with the call as appendCall encodes it.
const (
	wordToken    = 0  // 16 random bytes, by which a rank that opens the memory recognizes it
	wordRanks    = 2  // the number of ranks, and the layout's version
	wordOff      = 8  // 1: the store decides all records that are not done
	wordJoined   = 16 // how many ranks have joined
	wordSleepers = 24 // how many ranks sleep until a record is settled
	wordWriters  = 32 // how many ranks sleep until others have passed a record
	wordBell     = 40 // incremented to wake them: a futex of 4 bytes
	wordStates   = 64

	wordPassed    = 0 // of a rank: the last record that it has passed
	wordStart     = 1 // of a rank: the first record for which it looks into the memory
	wordReceivers = 2 // of a rank: how many of its calls sleep until a message comes
	wordInboxBell = 3 // of a rank: incremented to wake them
	rankHeads     = 8 // of a rank: the first word of its heads

	headSize   = 256
	headFixed  = 8 + 4 + 4 + 2
	version    = 2
	MaxRanks   = 1024
	maxSeq     = 1<<seqBits - 1
	seqBits    = 40
	countBits  = 11
	phaseBits  = 2
	payloadGap = 64 // payloads begin at multiples of it
)

// shape is the geometry of a memory. Its window is more than the heads: a rank may be ahead of the
// slowest one by heads records that memory decides, and by more that the store decides (see tooFar).
type shape struct {
	ranks  int
	window int // states
	heads  int // records that a rank may post before the others have passed them
	bytes  int // of a rank's payloads
	slot   int // bytes of a pair's slot
}

// standard is the shape that ranks use.
func standard(ranks int) shape {
	const perRank = 4 << 20
	slot := min(perRank/max(ranks, 1), 1<<20+pairHeader) / pairHeader * pairHeader
	return shape{ranks: ranks, window: 256, heads: 64, bytes: perRank, slot: slot}
}

// Size returns the size of the memory of a group in bytes, at most 8 MiB for each rank and 17 KiB.
func Size(ranks int) int { return standard(ranks).size() }

// size returns the size of the memory in bytes.
func (s shape) size() int { return 8*(wordStates+s.window) + s.ranks*(s.stride()+s.ranks*s.slot) }

// stride is the number of bytes of one rank.
func (s shape) stride() int { return 8*rankHeads + s.heads*headSize + s.bytes }

func (s shape) stateWord(seq uint64) int { return wordStates + int(seq%uint64(s.window)) }

func (s shape) rankWord(rank, word int) int {
	return wordStates + s.window + rank*s.stride()/8 + word
}

// maxPayload is the largest payload that is passed in memory: so that the next one can be written
// while ranks read it.
func (s shape) maxPayload() int { return s.bytes / 2 }

// head returns the memory of a rank's head for record seq.
func (m *Memory) head(rank int, seq uint64) []byte {
	at := 8*m.rankWord(rank, rankHeads) + int(seq%uint64(m.heads))*headSize
	return m.mem[at:][:headSize:headSize]
}

// data returns the memory of a rank's payloads.
func (m *Memory) data(rank int) []byte {
	at := 8*m.rankWord(rank, rankHeads) + m.heads*headSize
	return m.mem[at:][:m.bytes:m.bytes]
}

func (m *Memory) load(word int) uint64 {
	m.step()
	return atomic.LoadUint64(&m.words[word])
}

func (m *Memory) store(word int, v uint64) {
	m.step()
	atomic.StoreUint64(&m.words[word], v)
}

func (m *Memory) add(word int, delta uint64) {
	m.step()
	atomic.AddUint64(&m.words[word], delta)
}

func (m *Memory) swap(word int, old, now uint64) bool {
	m.step()
	return atomic.CompareAndSwapUint64(&m.words[word], old, now)
}

// state is the state word of a record: seq, how many ranks have arrived, the rank that changed it
// last, and the phase.
type state uint64

type phase uint64

const (
	phaseOpen phase = iota
	phaseDone       // decided in memory, as a success
	phaseSlow       // the store decides
)

func newState(seq uint64, p phase, arrivals, last int) state {
	return state(seq<<(2*countBits+phaseBits) | uint64(arrivals)<<(countBits+phaseBits) | uint64(last)<<phaseBits | uint64(p)) // #nosec G115 -- less than 1<<countBits
}

func (s state) seq() uint64  { return uint64(s) >> (2*countBits + phaseBits) }
func (s state) last() int    { return int(uint64(s) >> phaseBits & (1<<countBits - 1)) } // #nosec G115 -- 11 bits
func (s state) phase() phase { return phase(s) & (1<<phaseBits - 1) }

// arrivals returns how many ranks have arrived at record seq, which is not settled.
func (s state) arrivals(seq uint64) int {
	if s.seq() != seq {
		return 0
	}
	return int(uint64(s) >> (countBits + phaseBits) & (1<<countBits - 1)) // #nosec G115 -- 11 bits
}

// settled reports whether record seq has ended. A word that belongs to a later record means that.
func (s state) settled(seq uint64) bool {
	return s.seq() > seq || s.seq() == seq && s.phase() != phaseOpen
}

// post writes this rank's call and payload for record c.Seq, before the record's state says so. It
// reports false if there is no space, after it has waited for ranks that are behind.
func (m *Memory) post(ctx context.Context, c *wire.Contribution, payload []byte) bool {
	if len(payload) > m.maxPayload() || headFixed+callSize(c) > headSize {
		return false
	}
	at, ok := 0, false
	reserve := func() bool {
		if ok { // wait may ask again
			return true
		}
		if len(payload) > 0 || c.Seq > m.low+uint64(m.heads) {
			m.low = m.slowest()
		}
		if c.Seq <= m.low+uint64(m.heads) {
			at, ok = m.space.reserve(c.Seq, m.low, len(payload), m.bytes)
		}
		return ok
	}
	if !reserve() && m.low != m.stuck { // not again before the slowest rank has moved
		if m.wait(ctx, wordWriters, wordBell, reserve); !ok {
			m.stuck = m.low
		}
	}
	if !ok {
		return false
	}
	m.step()
	copy(m.data(m.rank)[at:], payload)
	h := m.head(m.rank, c.Seq)
	binary.LittleEndian.PutUint64(h, c.Seq)
	binary.LittleEndian.PutUint32(h[8:], uint32(at))            // #nosec G115 -- less than bytes
	binary.LittleEndian.PutUint32(h[12:], uint32(len(payload))) // #nosec G115 -- likewise
	binary.LittleEndian.PutUint16(h[16:], uint16(callSize(c)))  // #nosec G115 -- less than headSize
	appendCall(h[headFixed:headFixed], c)
	return true
}

// posted returns the call and the payload that rank posted for record seq. Both are in the shared
// memory.
func (m *Memory) posted(rank int, seq uint64) (call, payload []byte, err error) {
	if rank < 0 || rank >= m.ranks {
		return nil, nil, errCorrupt
	}
	m.step()
	h := m.head(rank, seq)
	at, n := int(binary.LittleEndian.Uint32(h[8:])), int(binary.LittleEndian.Uint32(h[12:]))
	size := int(binary.LittleEndian.Uint16(h[16:]))
	if binary.LittleEndian.Uint64(h) != seq || at > m.bytes || n > m.bytes-at || size > headSize-headFixed {
		return nil, nil, errCorrupt
	}
	return h[headFixed:][:size], m.data(rank)[at:][:n:n], nil
}

// A call is what core.Agree compares: flags u8 | reduction u8, kind u8 | root i32 | lengths of verb,
// type and label u8 | these.
const (
	callFixed = 1 + 2 + 4 + 3

	flagRootOnly = 1
	flagPart     = 2
)

func callSize(c *wire.Contribution) int {
	if len(c.Verb) > 255 || len(c.Type) > 255 || len(c.Label) > 255 {
		return headSize // too long
	}
	return callFixed + len(c.Verb) + len(c.Type) + len(c.Label)
}

func appendCall(b []byte, c *wire.Contribution) []byte {
	flags := byte(0)
	if c.RootOnly {
		flags |= flagRootOnly
	}
	if c.Want == wire.WantPart {
		flags |= flagPart
	}
	b = append(b, flags, byte(c.Reduction.Op), byte(c.Reduction.Kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Root)) // #nosec G115 -- a rank, or -1
	b = append(b, byte(len(c.Verb)), byte(len(c.Type)), byte(len(c.Label)))
	b = append(b, c.Verb...)
	b = append(b, c.Type...)
	return append(b, c.Label...)
}

func parseCall(b []byte) (c wire.Contribution, err error) {
	if len(b) < callFixed {
		return c, errCorrupt
	}
	verb, typ, label := int(b[7]), int(b[8]), int(b[9])
	if len(b) != callFixed+verb+typ+label {
		return c, errCorrupt
	}
	c.RootOnly, c.Want = b[0]&flagRootOnly != 0, wire.WantNothing
	if b[0]&flagPart != 0 {
		c.Want = wire.WantPart
	}
	c.Reduction = wire.Reduction{Op: wire.ReduceOp(b[1]), Kind: wire.NumberKind(b[2])}
	c.Root = int(int32(binary.LittleEndian.Uint32(b[3:]))) // #nosec G115 -- as it was encoded
	text := string(b[callFixed:])
	c.Verb, c.Type, c.Label = text[:verb], text[verb:verb+typ], text[verb+typ:]
	return c, nil
}
