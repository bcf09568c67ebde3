package collective

import (
	"context"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/shm"
)

// A board is memory of one rank that the others of its node have mapped, to read it. Nobody else writes there, so a rank that has
// gone wrong spoils no other's. Numbers are of this host's byte order.
//
//	0   posted u64    the number under which it has posted last: a futex, on which others sleep
//	8   asleep u32    1 + index of the rank that it sleeps on; 0: it does not
//	12  left u32      1: it posts no more
//	64  head[48]      of what it has posted under even numbers
//	128 head[48]      of odd ones
//	4096              slots, for even and odd numbers
const (
	boardHead  = 4096
	boardSlot  = 512 << 10
	boardSize  = boardHead + 2*boardSlot
	atPosted   = 0
	atAsleep   = 8
	atLeft     = 12
	headStride = 64
)

// boards is the medium of processes of one host.
type boards struct {
	arena *shm.Arena
	mine  []byte
	all   [][]byte // by index
	me    int
	conns []*shm.Conn
	lent  []*shm.Block
}

func word32(b []byte, at int) *uint32 { return (*uint32)(unsafe.Pointer(&b[at])) }
func word64(b []byte, at int) *uint64 { return (*uint64)(unsafe.Pointer(&b[at])) }

func (m *boards) direct() bool { return false }
func (m *boards) hold() bool   { return true }
func (m *boards) let()         {}
func (m *boards) retreat()     {} // what others look at is the board

func (m *boards) slot(n uint64) []byte {
	at := boardHead + int(n%2)*boardSlot
	return m.mine[at:][:boardSlot:boardSlot]
}

func (m *boards) post(n uint64, h *head, _ vector) {
	h.put(m.mine[headStride*(1+n%2):])
	atomic.StoreUint64(word64(m.mine, atPosted), n)
	m.ring()
}

// ring wakes those who sleep on this rank.
func (m *boards) ring() {
	for i, b := range m.all {
		if i != m.me && atomic.LoadUint32(word32(b, atAsleep)) == uint32(m.me)+1 {
			_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word32(m.mine, atPosted))), futexWake, 1<<30, 0, 0, 0)
			return
		}
	}
}

const (
	futexWait = 0
	futexWake = 1

	// patience is how long a rank looks, and lets other processes run meanwhile, before it sleeps: what others do may take less than to be
	// woken. If others keep the processor for longer, it is theirs.
	patience = 50 * time.Microsecond
	// nap bounds a sleep, after which it looks whether the Comm is over.
	nap = 20 * time.Millisecond
)

func (m *boards) wait(over context.Context, index int, n uint64) bool {
	posted := word64(m.all[index], atPosted)
	for start := time.Now(); time.Since(start) < patience; {
		if atomic.LoadUint64(posted) >= n {
			return true
		}
		_, _, _ = syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	asleep := word32(m.mine, atAsleep)
	atomic.StoreUint32(asleep, uint32(index)+1)
	defer atomic.StoreUint32(asleep, 0)
	for {
		left := atomic.LoadUint32(word32(m.all[index], atLeft)) != 0 // before the number: who has posted may leave then
		now := atomic.LoadUint64(posted)
		switch {
		case now >= n:
			return true
		case left, over.Err() != nil:
			return false
		}
		timeout := unix.NsecToTimespec(int64(nap))
		_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(posted)), futexWait, uintptr(uint32(now)), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	}
}

func (m *boards) look(index int, n uint64, length int) (head, vector) {
	b := m.all[index]
	at := boardHead + int(n%2)*boardSlot
	return parseHead(b[headStride*(1+n%2):]), one(b[at:][:length])
}

func (m *boards) leave() {
	atomic.StoreUint32(word32(m.mine, atLeft), 1)
	m.ring()
}

func (m *boards) close() {
	for _, b := range m.lent {
		b.Release()
	}
	for _, c := range m.conns {
		_ = c.Close()
	}
	m.arena.Free(m.mine)
	_ = m.arena.Close()
}
