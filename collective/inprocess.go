package collective

import (
	"context"
	"crypto/rand"
	"runtime"
	"sync"
	"sync/atomic"
)

// thisProcess is the same for all ranks of a process, and for no others.
var thisProcess = sync.OnceValue(rand.Text)

// rooms are where ranks of this process meet that open a Comm together: pointers cannot be told through a store. A room is here from when the
// first comes to when the last has come, or one has given up.
var rooms = struct {
	sync.Mutex
	open map[string]*room
}{open: map[string]*room{}}

// room is what ranks of one process have in common.
type room struct {
	here  int
	seats []seat
	over  atomic.Bool // somebody has retreated
}

// seat is where a rank shows others what is in its memory.
type seat struct {
	posted atomic.Uint64 // the number under which it has posted last
	left   atomic.Bool
	asleep atomic.Bool
	using  atomic.Bool   // what others have shown
	bell   chan struct{} // has room for one: somebody has posted while it was asleep
	shown  [2]struct {
		head head
		data vector
		copy []byte
	}
	_ [64]byte // another's is in another cache line
}

// enterRoom is the room with a name, for n ranks.
func enterRoom(name string, n int) *room {
	rooms.Lock()
	defer rooms.Unlock()
	r := rooms.open[name]
	if r == nil {
		r = &room{seats: make([]seat, n)}
		for i := range r.seats {
			r.seats[i].bell = make(chan struct{}, 1)
		}
		rooms.open[name] = r
	}
	if r.here++; r.here == n {
		delete(rooms.open, name)
	}
	return r
}

// inProcess is the medium of ranks that are goroutines: what one shows is its own slice.
type inProcess struct {
	*room
	name string
	me   int
}

func newInProcess(name string, n, me int) *inProcess {
	m := &inProcess{enterRoom(name, n), name, me}
	for i := range m.seats[me].shown {
		m.seats[me].shown[i].copy = make([]byte, smallLocal)
	}
	return m
}

func (m *inProcess) slot(n uint64) []byte { return m.seats[m.me].shown[n%2].copy }
func (m *inProcess) direct() bool         { return true }

func (m *inProcess) post(n uint64, h *head, data vector) {
	s := &m.seats[m.me]
	s.shown[n%2].head, s.shown[n%2].data = *h, data
	s.posted.Store(n)
	m.ring()
}

// ring wakes who may wait for this rank.
func (m *inProcess) ring() {
	for i := range m.seats {
		if s := &m.seats[i]; s.asleep.Load() {
			select {
			case s.bell <- struct{}{}:
			default:
			}
		}
	}
}

// spins is how often a rank looks, and lets others run, before it sleeps.
const spins = 50

func (m *inProcess) wait(over context.Context, index int, n uint64) bool {
	s, me := &m.seats[index], &m.seats[m.me]
	for range spins {
		if s.posted.Load() >= n {
			return true
		}
		runtime.Gosched()
	}
	me.asleep.Store(true)
	defer me.asleep.Store(false)
	for {
		left := s.left.Load() // before the number: who has posted may leave then
		switch {
		case s.posted.Load() >= n:
			return true
		case left:
			return false
		}
		select {
		case <-me.bell:
		case <-over.Done():
			return false
		}
	}
}

func (m *inProcess) look(index int, n uint64, length int) (head, vector) {
	shown := &m.seats[index].shown[n%2]
	return shown.head, shown.data.part(0, length)
}

func (m *inProcess) hold() bool {
	m.seats[m.me].using.Store(true)
	if m.over.Load() {
		m.let()
		return false
	}
	return true
}

func (m *inProcess) let() { m.seats[m.me].using.Store(false) }

func (m *inProcess) retreat() {
	m.let()
	m.over.Store(true)
	for i := range m.seats {
		for m.seats[i].using.Load() { // no longer than it computes: it lets go before it waits for anybody
			runtime.Gosched()
		}
	}
}

func (m *inProcess) leave() {
	m.seats[m.me].left.Store(true)
	m.ring()
}

func (m *inProcess) close() {
	rooms.Lock()
	defer rooms.Unlock()
	if rooms.open[m.name] == m.room {
		delete(rooms.open, m.name)
	}
}
