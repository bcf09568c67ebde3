package collective

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/muster-pg/muster/internal/spin"
	"github.com/muster-pg/muster/shm"
)

// A shared buffer is memory of one rank that the others of its host have mapped read-only. Only its
// owner writes to it, so a faulty rank does not corrupt others. Numbers are in this host's byte
// order.
//
//	0   posted u64    the number of its last post: a futex, on which others sleep
//	8   asleep u32    1 + index of the rank that it sleeps on; 0: it does not sleep
//	12  left u32      1: it makes no more posts
//	64  head[48]      of its last post with an even number
//	128 head[48]      of its last post with an odd number
//	4096              slots, for even and odd numbers
const (
	bufferHead = 4096
	bufferSlot = 512 << 10
	bufferSize = bufferHead + 2*bufferSlot
	atPosted   = 0
	atAsleep   = 8
	atLeft     = 12
	headStride = 64
)

// sharedBuffers is the medium of ranks of one host.
type sharedBuffers struct {
	arena  *shm.Arena
	mine   []byte
	all    [][]byte // by index
	me     int
	conns  []*shm.Conn
	mapped []*shm.Block
	spin   spin.Poller
}

func word32(b []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&b[at])) }
func word64(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }

func (m *sharedBuffers) slot(n uint64) []byte {
	at := bufferHead + int(n%2)*bufferSlot
	return m.mine[at:][:bufferSlot:bufferSlot]
}

func (m *sharedBuffers) post(n uint64, h *head) {
	h.put(m.mine[headStride*(1+n%2):])
	atomic.StoreUint64(word64(m.mine, atPosted), n)
	m.wake()
}

// wake wakes the ranks that sleep on this one.
func (m *sharedBuffers) wake() {
	for i, b := range m.all {
		if i != m.me && atomic.LoadUint32(word32(b, atAsleep)) == uint32(m.me)+1 {
			spin.Wake(word32(m.mine, atPosted))
			return
		}
	}
}

// nap bounds a sleep. After it the rank checks whether the Comm has ended.
const nap = 20 * time.Millisecond

func (m *sharedBuffers) wait(over context.Context, index int, n uint64) bool {
	posted := word64(m.all[index], atPosted)
	if m.spin.Poll(func() bool { return atomic.LoadUint64(posted) >= n }) {
		return true
	}
	asleep := word32(m.mine, atAsleep)
	atomic.StoreUint32(asleep, uint32(index)+1)
	defer atomic.StoreUint32(asleep, 0)
	for {
		// read before the number: a rank may leave after its last post
		left := atomic.LoadUint32(word32(m.all[index], atLeft)) != 0
		now := atomic.LoadUint64(posted)
		switch {
		case now >= n:
			return true
		case left, over.Err() != nil:
			return false
		}
		spin.Sleep(word32(m.all[index], atPosted), uint32(now), nap)
	}
}

func (m *sharedBuffers) look(index int, n uint64, length int) (head, vector) {
	b := m.all[index]
	at := bufferHead + int(n%2)*bufferSlot
	return parseHead(b[headStride*(1+n%2):]), one(b[at:][:length])
}

func (m *sharedBuffers) leave() {
	atomic.StoreUint32(word32(m.mine, atLeft), 1)
	m.wake()
}

func (m *sharedBuffers) close() {
	for _, b := range m.mapped {
		b.Release()
	}
	for _, c := range m.conns {
		_ = c.Close()
	}
	m.arena.Free(m.mine)
	_ = m.arena.Close()
}
