package collective

import (
	"context"
	"crypto/rand"
	"runtime"
	"sync"
	"sync/atomic"
)

// thisProcess identifies this process.
var thisProcess = sync.OnceValue(rand.Text)

// rendezvousByName has the rendezvous of ranks of this process that open a Comm together: pointers
// cannot be sent through a store. An entry exists from the arrival of the first rank until the last
// one has arrived, or one has timed out.
var rendezvousByName = struct {
	sync.Mutex
	open map[string]*rendezvous
}{open: map[string]*rendezvous{}}

// rendezvous is the state that ranks of one process share.
type rendezvous struct {
	here    int
	members []member
	over    atomic.Bool // a rank has withdrawn
}

// member is what a rank shows the others of its memory.
type member struct {
	posted atomic.Uint64 // number of its last post
	left   atomic.Bool
	asleep atomic.Bool
	using  atomic.Bool   // it is using what others have posted
	bell   chan struct{} // holds one signal: another rank has posted while this one slept
	shown  [2]struct {
		head head
		data vector
		copy []byte
	}
	_ [64]byte // so that members are in different cache lines
}

// joinRendezvous returns the rendezvous of that name, for n ranks.
func joinRendezvous(name string, n int) *rendezvous {
	rendezvousByName.Lock()
	defer rendezvousByName.Unlock()
	r := rendezvousByName.open[name]
	if r == nil {
		r = &rendezvous{members: make([]member, n)}
		for i := range r.members {
			r.members[i].bell = make(chan struct{}, 1)
		}
		rendezvousByName.open[name] = r
	}
	if r.here++; r.here == n {
		delete(rendezvousByName.open, name)
	}
	return r
}

// inProcess is the medium of ranks that are goroutines: they post their own slices.
type inProcess struct {
	*rendezvous
	name string
	me   int
}

func newInProcess(name string, n, me int) *inProcess {
	m := &inProcess{joinRendezvous(name, n), name, me}
	for i := range m.members[me].shown {
		m.members[me].shown[i].copy = make([]byte, smallLocal)
	}
	return m
}

func (m *inProcess) slot(n uint64) []byte { return m.members[m.me].shown[n%2].copy }
func (m *inProcess) direct() bool         { return true }

func (m *inProcess) post(n uint64, h *head, data vector) {
	s := &m.members[m.me]
	s.shown[n%2].head, s.shown[n%2].data = *h, data
	s.posted.Store(n)
	m.wake()
}

// wake wakes the ranks that may wait for this one.
func (m *inProcess) wake() {
	for i := range m.members {
		if s := &m.members[i]; s.asleep.Load() {
			select {
			case s.bell <- struct{}{}:
			default:
			}
		}
	}
}

// spins is how often a rank polls and yields before it sleeps.
const spins = 50

func (m *inProcess) wait(over context.Context, index int, n uint64) bool {
	s, me := &m.members[index], &m.members[m.me]
	for range spins {
		if s.posted.Load() >= n {
			return true
		}
		runtime.Gosched()
	}
	me.asleep.Store(true)
	defer me.asleep.Store(false)
	for {
		left := s.left.Load() // read before the number: a rank may leave after its last post
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
	shown := &m.members[index].shown[n%2]
	return shown.head, shown.data.part(0, length)
}

func (m *inProcess) hold() bool {
	m.members[m.me].using.Store(true)
	if m.over.Load() {
		m.unhold()
		return false
	}
	return true
}

func (m *inProcess) unhold() { m.members[m.me].using.Store(false) }

func (m *inProcess) withdraw() {
	m.unhold()
	m.over.Store(true)
	for i := range m.members {
		// short: a rank releases it before it waits for another rank
		for m.members[i].using.Load() {
			runtime.Gosched()
		}
	}
}

func (m *inProcess) leave() {
	m.members[m.me].left.Store(true)
	m.wake()
}

func (m *inProcess) close() {
	rendezvousByName.Lock()
	defer rendezvousByName.Unlock()
	if rendezvousByName.open[m.name] == m.rendezvous {
		delete(rendezvousByName.open, m.name)
	}
}
