package hostmem

import (
	"context"
	"encoding/binary"
)

// A pair of ranks has a slot, which passes one message at a time from the sender to the receiver. A
// message is passed in memory only if its receiver waits for it there; otherwise the sender gives it
// to the store. So no message stays in memory: none expires there, counts against a limit, or is
// lost with its sender.
//
// Messages of a pair arrive in the order of sending, though some pass through the store: the slot
// has the number of those that the sender has given to the store, and of those that the receiver had
// received from it when it began to wait. A message is passed in memory only if they are equal.
//
// The receiver's wait ends by compare-and-swap of the state: by the sender, when it has written the
// message, or by the receiver, which then asks the store. A sender may end a later wait than the one
// that it saw when it began to write: that is for the same message.
//
// The slot of a pair is:
//
//	words      8 B each: see pairState and below
//	type       length u16 | text
//	length     u32, of the payload
//	payload    from pairHeader on
const (
	pairState  = 0 // waiting; 0: the slot has what was passed last
	pairTaken  = 1 // of the receiver: messages received from the store before the wait
	pairSent   = 8 // of the sender: 1 + the messages that it gave to the store; 0: it does not look here
	pairWords  = 16
	pairHeader = 256 // bytes of the words, lengths and type
	pairType   = 8 * pairWords
	maxType    = pairHeader - pairType - 2 - 4
)

const waiting = 1 // the receiver waits

func (s shape) pair(src, dst int) int {
	return wordStates + s.window + s.ranks*s.stride()/8 + (src*s.ranks+dst)*s.slot/8
}

// slotBytes returns the memory of a pair's slot.
func (m *Memory) slotBytes(pair int) []byte { return m.mem[8*pair:][:m.slot:m.slot] }

// Send passes a message to rank dst. stored is the number of messages to dst that this rank has given
// to the store. It reports false if the store must have this message too: dst does not wait for it
// in memory, or not for long enough; Stored must then be called before the message is sent. If
// patient, Send waits a moment for dst, which may be about to call Receive again. Calls with the same
// dst are made one at a time.
func (m *Memory) Send(dst int, stored uint64, patient bool, typ string, payload []byte) bool {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed || len(typ) > maxType || len(payload) > m.slot-pairHeader {
		return false
	}
	pair := m.pair(m.rank, dst)
	if m.load(pair+pairSent) != stored+1 {
		m.store(pair+pairSent, stored+1)
	}
	waits := func() bool {
		return m.load(pair+pairState) == waiting && m.load(pair+pairTaken) == stored && !m.isOff()
	}
	if !waits() && (!patient || !m.poll(waits)) {
		return false
	}
	m.step()
	b := m.slotBytes(pair)
	binary.LittleEndian.PutUint16(b[pairType:], uint16(len(typ))) // #nosec G115 -- less than pairHeader
	copy(b[pairType+2:], typ)
	binary.LittleEndian.PutUint32(b[pairHeader-4:], uint32(len(payload))) // #nosec G115 -- less than slot
	copy(b[pairHeader:], payload)
	if !m.swap(pair+pairState, waiting, 0) {
		return false
	}
	m.ring(m.rankWord(dst, wordReceivers), m.rankWord(dst, wordInboxBell))
	return true
}

// Stored makes known that this rank gives messages to dst to the store, in place of memory: so many up
// to now.
func (m *Memory) Stored(dst int, stored uint64) {
	m.life.RLock()
	defer m.life.RUnlock()
	if !m.closed {
		m.store(m.pair(m.rank, dst)+pairSent, stored+1)
		m.ring(m.rankWord(dst, wordReceivers), m.rankWord(dst, wordInboxBell))
	}
}

// Receive waits for the next message from src, as Collect waits. stored is the number of messages
// from src that this rank has received from the store. It reports false if this rank must ask the
// store for the message. Calls with the same src are made one at a time.
func (m *Memory) Receive(ctx context.Context, src int, stored uint64) (typ string, payload []byte, ok bool) {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed || m.isOff() {
		return "", nil, false
	}
	pair := m.pair(src, m.rank)
	if m.load(pair+pairSent) != stored+1 {
		return "", nil, false
	}
	m.store(pair+pairTaken, stored)
	m.store(pair+pairState, waiting)
	m.wait(ctx, m.rankWord(m.rank, wordReceivers), m.rankWord(m.rank, wordInboxBell), func() bool {
		return m.load(pair+pairState) != waiting || m.load(pair+pairSent) != stored+1
	})
	if m.swap(pair+pairState, waiting, 0) {
		return "", nil, false
	}
	m.step()
	b := m.slotBytes(pair)
	size := int(binary.LittleEndian.Uint32(b[pairHeader-4:]))
	text := int(binary.LittleEndian.Uint16(b[pairType:]))
	if size > len(b)-pairHeader || text > maxType { // of a faulty sender
		size, text = 0, 0
	}
	return string(b[pairType+2:][:text]), append(make([]byte, 0, size), b[pairHeader:][:size]...), true
}
