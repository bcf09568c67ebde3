package store

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/wire"
)

// Limits bound what a Memory holds. The zero value has the defaults.
type Limits = core.Limits

// Memory is the semantics: an Engine whose state is in this process. The zero value is ready.
//
// It drives one core.Machine: its lock, its clock, and who is told. It owns no goroutine; one
// timer runs while something has a deadline. Calls that wait cost a map entry and a channel.
type Memory struct {
	// Before the first call:
	Limits Limits
	// Dir, if it is not empty, is a directory of this store's own, which is made if need be: what was acknowledged then survives
	// the end of the process at any moment, and of the machine too. The answer to a change waits until it is on the disk, together with
	// those of others; answers to reads wait for the changes that they show.
	Dir string
	// Replica, instead of Dir, keeps the store's log where another process can take the store over; see package etcdlog.
	Replica Replica
	// Grace is how long sessions may take to come back after a restart of a durable store; default 10 s.
	ReconnectTimeout time.Duration
	Logger           *slog.Logger // nil is silent

	mu          sync.Mutex // protects the fields below; never held during I/O
	machine     *core.Machine
	start       time.Time
	stopped     time.Duration // of the time since start, how long this process stood still
	timer       *time.Timer
	armed       core.Time // what timer is set to; 0 is nothing
	calls       map[core.Ticket]*call
	links       map[uint64]sessionConn // sessions that are connections of a Server
	lastID      uint64
	closed      bool
	closeCalled bool // Close has been called

	incarnation uint64 // of the state: sessions of another one cannot be taken up again

	fs           durable.FS    // of Dir, in tests; nil is the system's
	disk         *durable.Disk // nil if nothing is to survive
	commit       *committer    // with disk
	pos          uint64        // of the last event in disk's log
	logged       core.Time     // of that event
	durable      uint64        // where the disk was when stalled last looked
	waited       bool          // somebody waited for it then
	meter        meter
	backups      map[uint64]*backupCopy // by session, that are being read
	backupsBegun uint64                 // how many backups were begun
	failure      error                  // why the store has failed; closed is true then
	failed       chan struct{}          // closed then
}

// stays reports whether what m has outlives this process.
func (m *Memory) isDurable() bool { return m.Dir != "" || m.Replica != nil }

// call is a Do that waits.
type call struct {
	rep  *wire.Reply
	done chan struct{}
	err  error
}

func (c *call) end(err error) {
	c.err = err
	close(c.done)
}

// link is a session's way to its peer.
type sessionConn interface {
	// deliver queues a reply that shows the log up to pos. encode encodes a reply that many sessions get only once.
	deliver(e core.Effect, pos uint64, encode *encoder)
	flush()
	close()
	silentFor() time.Duration // since the peer was last heard of
}

// A process that was stopped finds all deadlines passed when it goes on, though its peers have kept
// them: time that it did not see does not count. A timer that is late by more than lateness tells
// of it; then everything gets breath, so that what lies in the sockets is read first.
const (
	lateness = 100 * time.Millisecond
	breath   = 20 * time.Millisecond
)

// open makes m ready. Called with mu.
func (m *Memory) open() error {
	if m.failure != nil {
		return m.failure
	}
	if m.closed {
		return ErrClosed
	}
	if m.machine != nil {
		return nil
	}
	if !m.isDurable() {
		m.machine, m.incarnation = core.New(m.Limits), rand.Uint64()|1
	} else if err := m.openDisk(); err != nil {
		return err
	}
	m.start = time.Now().Add(-m.machine.Now())
	m.calls = map[core.Ticket]*call{}
	m.links = map[uint64]sessionConn{}
	m.timer = time.AfterFunc(time.Hour, m.tick)
	m.timer.Stop()
	return nil
}

// Open makes m ready, as the first call would: what is wrong with Dir is told here.
func (m *Memory) Open() error {
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return err
	}
	m.release()
	return nil
}

// log opens m, and returns its committer, which is nil if m is not durable.
func (m *Memory) log() (*committer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.open()
	return m.commit, err
}

// now is the machine's time. Called with mu.
func (m *Memory) now() core.Time {
	now := time.Since(m.start) - m.stopped
	if m.armed > 0 && now > m.armed+lateness {
		m.stopped += now - m.armed + breath
		now = m.armed - breath
	}
	return now
}

// requests are used again: the machine keeps none.
var requests = sync.Pool{New: func() any { return new(wire.Request) }}

// Do implements Engine.
func (m *Memory) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Op == wire.OpBackup {
		return m.backup(req.Session, req.Rev, rep)
	}
	own := requests.Get().(*wire.Request)
	*own = *req
	defer func() { *own = wire.Request{}; requests.Put(own) }()
	if req.Op.KeepsValue() {
		own.Value = bytes.Clone(req.Value)
	}
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return err
	}
	if own.Session == core.Local {
		m.lastID++
		own.ID = m.lastID
	}
	answered := m.apply(own.Session, own, rep)
	var c *call
	ticket := core.Ticket{Session: own.Session, ID: own.ID}
	if !answered {
		if before := m.calls[ticket]; before != nil { // the same call came again: it waits on
			before.end(ErrClosed)
		}
		c = &call{rep: rep, done: make(chan struct{})}
		m.calls[ticket] = c
	}
	commit, pos := m.commit, m.position()
	m.release()
	var err error
	switch {
	case !answered:
		err = m.await(ctx, own, c)
	case commit != nil && (own.Op != wire.OpStatus || commit.disk.Shared()): // a status is to say that the disk stalls
		if err = commit.await(ctx, pos); err != nil && own.Op.Numbered() {
			err = unknownOutcome(err)
		}
	}
	if err == nil {
		clone(rep)
	}
	return err
}

// position returns the position of a reply that shows the present state; see committer. The caller holds mu.
func (m *Memory) position() uint64 {
	if m.commit == nil {
		return 0
	}
	return m.commit.position(m.pos)
}

// apply has the machine carry out a request. Called with mu.
func (m *Memory) apply(session uint64, req *wire.Request, rep *wire.Reply) (answered bool) {
	if req.Op == wire.OpHello {
		req.Old = newToken()
		if req.Rev != m.incarnation {
			req.Resume = 0
		}
	}
	answered = m.applyLogged(m.now(), session, req, rep)
	if req.Op == wire.OpHello {
		rep.Rev, rep.Nums = m.incarnation, []int64{0}
		if m.disk != nil {
			rep.Nums[0] = 1
		}
	}
	return answered
}

// newToken is what a client has to know to take its session up again.
func newToken() []byte {
	token := make([]byte, 16)
	_, _ = crand.Read(token) // never fails
	return token
}

// await waits for c's answer, and withdraws it when ctx ends.
func (m *Memory) await(ctx context.Context, req *wire.Request, c *call) error {
	err := await(ctx, req.Op, c.done, func(why cancellation) {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return
		}
		m.applyLogged(m.now(), req.Session, why.request(req.ID), new(wire.Reply))
		m.release()
	})
	if err == nil {
		return c.err
	}
	m.mu.Lock()
	ticket := core.Ticket{Session: req.Session, ID: req.ID}
	waits, commit := m.calls[ticket] == c, m.commit
	if waits {
		delete(m.calls, ticket)
	}
	m.mu.Unlock()
	switch {
	case waits:
		return err
	case commit != nil: // answered meanwhile; the log may take longer than the caller waits
		select {
		case <-c.done:
		default:
			return err
		}
	}
	<-c.done
	return c.err
}

// release sets the timer, unlocks, and tells those whose calls the last step answered.
func (m *Memory) release() {
	effects, pos := m.machine.Effects(), m.position()
	at, ok := m.machine.Next()
	at = max(at, m.machine.Now()) // what is left of many things that were due is not late
	if ok && m.disk != nil {
		at = min(at, m.logged+timeLogged)
	}
	if ok && (m.armed == 0 || at < m.armed) {
		m.armed = at
		m.timer.Reset(m.armed - (time.Since(m.start) - m.stopped))
	}
	var answers []delivery
	var calls []*call
	if len(effects) > 0 {
		answers, calls = m.route(effects)
	}
	commit := m.commit
	behind := commit != nil && m.pos > m.disk.Durable()+maxUnsynced
	m.mu.Unlock()
	if behind {
		commit.requestWrite(pos)
	}
	if len(answers) > 0 {
		deliverAll(answers, pos)
	}
	for _, c := range calls { // after the replies to peers: a process that hosts a store may exit when its own call returns
		if commit == nil {
			c.end(nil)
		} else {
			commit.onReleased(&waiter{pos, c.end})
		}
	}
}

// route finds out who is told what. Called with mu.
func (m *Memory) route(effects []core.Effect) (answers []delivery, calls []*call) {
	for _, e := range effects {
		if l := m.links[e.Session]; l != nil {
			answers = append(answers, delivery{l, e})
			continue
		}
		if c := m.calls[e.Ticket]; c != nil {
			delete(m.calls, e.Ticket)
			*c.rep = *e.Reply
			calls = append(calls, c)
		}
	}
	return answers, calls
}

// tick lets happen what is due, in small portions. Between two of them it lets others run who wait for the lock: a mutex alone would
// leave it to whoever has it already.
func (m *Memory) tick() {
	for m.tickOnce() {
		runtime.Gosched()
	}
}

// tickOnce reports whether there is more to do.
func (m *Memory) tickOnce() (more bool) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	now := m.now()
	m.tickLogged(now)
	at, armed := m.machine.Next()
	if more = armed && at <= now; more {
		m.armed = now // no timer is needed
	} else {
		m.armed = 0
	}
	m.release()
	return more
}

// attach opens the session that hello asks for, or takes it up again. Its answers go to c from now on, the welcome first, and no request of the
// link that it had before is carried out any more; that link is returned, to be closed.
func (m *Memory) attach(c *conn, hello *wire.Request, welcome *wire.Reply) (before sessionConn, err error) {
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	m.apply(core.Local, hello, welcome)
	session := uint64(welcome.N)
	before = m.links[session]
	m.links[session] = c
	c.session.Store(session)
	c.sendWelcome(welcome) // with mu: no other answer may come before it
	c.welcomed = c.out.Held()
	if c.welcomed > 0 && !m.disk.Shared() { // a shared log: another process may lead
		time.AfterFunc(slowDisk, func() {
			c.out.Release(c.welcomed)
			c.out.Flush()
		})
	}
	m.release()
	return before, nil
}

// attached reports whether session's answers still go to l. Called with mu.
func (m *Memory) attached(session uint64, l sessionConn) bool {
	return !m.closed && m.links[session] == l
}

// detach ends a session: by goodbye, or lost, if l is its link. One that is lost may come back until grace has passed.
func (m *Memory) detach(session uint64, l sessionConn, how wire.Op, grace time.Duration) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.endSession(m.now(), session, l, &wire.Request{Op: how, TTL: grace})
	m.release()
}

// part is how a session ends, or loses its link, if that is l. Called with mu, of a store that is not closed.
func (m *Memory) endSession(now core.Time, session uint64, l sessionConn, how *wire.Request) {
	if m.attached(session, l) {
		delete(m.links, session)
		m.forgetBackup(session)
		m.applyLogged(now, session, how, new(wire.Reply))
	}
}

// Keys is the number of entries.
func (m *Memory) Keys() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machine == nil {
		return 0
	}
	return m.machine.Keys()
}

// Close ends all waiting calls with ErrClosed, and the connections of a Server that is still running. What is not in Dir is forgotten.
func (m *Memory) Close() error {
	links := m.end(ErrClosed)
	defer func() {
		for _, l := range links {
			l.close()
		}
	}()
	m.mu.Lock()
	disk, first := m.disk, !m.closeCalled
	m.closeCalled = true
	m.mu.Unlock()
	if disk == nil || !first {
		return nil
	}
	m.commit.close()
	return disk.Close()
}

// end ends all calls with err, and returns the links, which are to be closed.
func (m *Memory) end(err error) (links map[uint64]sessionConn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	for _, c := range m.calls {
		c.end(err)
	}
	for session := range m.backups {
		m.forgetBackup(session)
	}
	links = m.links
	m.machine, m.calls, m.links = nil, nil, nil
	return links
}

// clone makes what rep holds the caller's: the machine's values are shared by all.
func clone(rep *wire.Reply) {
	rep.Value = bytes.Clone(rep.Value)
	rep.Values = cloneAll(rep.Values)
	rep.Keys = slices.Clone(rep.Keys)
	rep.Type = strings.Clone(rep.Type)
}

// cloneAll copies values into one piece of memory: an all-gather has many small ones.
func cloneAll(values [][]byte) [][]byte {
	n := 0
	for _, v := range values {
		n += len(v)
	}
	room := make([]byte, 0, n)
	own := slices.Clone(values)
	for i, v := range values {
		if v != nil {
			start := len(room)
			room = append(room, v...)
			own[i] = room[start:len(room):len(room)]
		}
	}
	return own
}
