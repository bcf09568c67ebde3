package store

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

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
	Grace  time.Duration
	Logger *slog.Logger // nil is silent

	mu      sync.Mutex // protects the fields below; never held during I/O
	machine *core.Machine
	start   time.Time
	stopped time.Duration // of the time since start, how long this process stood still
	timer   *time.Timer
	armed   core.Time // what timer is set to; 0 is nothing
	calls   map[core.Ticket]*call
	links   map[uint64]link // sessions that are connections of a Server
	lastID  uint64
	closed  bool
	shut    bool // Close has been called

	incarnation uint64 // of the state: sessions of another one cannot be taken up again

	fs      durable.FS    // of Dir, in tests; nil is the system's
	disk    *durable.Disk // nil if nothing is to survive
	commit  *committer    // with disk
	pos     uint64        // of the last event in disk's log
	logged  core.Time     // of that event
	durable uint64        // where the disk was when stalled last looked
	waited  bool          // somebody waited for it then
	meter   meter
	backups map[uint64]*backupCopy // by session, that are being read
	copies  uint64                 // how many backups were begun
	fault   error                  // why the store has failed; closed is true then
	failed  chan struct{}          // closed then
}

// Replica opens a log that this process leads, and the machine that has replayed it.
type Replica interface {
	Open(limits Limits, o *durable.Options) (*durable.Disk, *core.Machine, error)
}

// stays reports whether what m has outlives this process.
func (m *Memory) stays() bool { return m.Dir != "" || m.Replica != nil }

// call is a Do that waits.
type call struct {
	rep  *wire.Reply
	done chan struct{}
	err  error
}

// link is a session's way to its peer.
type link interface {
	// deliver queues an answer; encode keeps answers that many share from being encoded for each.
	deliver(e core.Effect, encode *encoder)
	flush()
	close()
	quiet() time.Duration // since the peer was last heard of
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
	if m.fault != nil {
		return m.fault
	}
	if m.closed {
		return ErrClosed
	}
	if m.machine != nil {
		return nil
	}
	if !m.stays() {
		m.machine, m.incarnation = core.New(m.Limits), rand.Uint64()|1
	} else if err := m.openDisk(); err != nil {
		return err
	}
	m.start = time.Now().Add(-m.machine.Now())
	m.calls = map[core.Ticket]*call{}
	m.links = map[uint64]link{}
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
	if core.Keeps(req.Op) {
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
			before.err = ErrClosed
			close(before.done)
		}
		c = &call{rep: rep, done: make(chan struct{})}
		m.calls[ticket] = c
	}
	pos := m.pos
	m.release()
	if !answered {
		if err := m.await(ctx, own, c); err != nil {
			return err
		}
	} else if own.Op != wire.OpStatus || m.disk != nil && m.disk.Shared() { // it is to say that the disk stalls
		if err := m.sync(pos); err != nil {
			return err
		}
	}
	clone(rep)
	return nil
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
	err := await(ctx, req.Op, c.done, func(why withdrawal) {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return
		}
		m.applyLogged(m.now(), req.Session, why.request(req.ID), new(wire.Reply))
		m.release()
	})
	if err != nil {
		ticket := core.Ticket{Session: req.Session, ID: req.ID}
		m.mu.Lock()
		waits := m.calls[ticket] == c
		delete(m.calls, ticket)
		m.mu.Unlock()
		if waits {
			return err
		}
		<-c.done // answered meanwhile
	}
	return c.err
}

// release sets the timer, unlocks, and tells those whose calls the last step answered.
func (m *Memory) release() { m.releaseTo(nil, nil) }

// releaseTo is release with answers for c, which are staged if the store is durable.
func (m *Memory) releaseTo(c *conn, staged []byte) {
	p := parcel{pos: m.pos, to: c, staged: staged}
	if len(staged) > 0 {
		c.parcels.Add(1)
	}
	effects := m.machine.Effects()
	at, ok := m.machine.Next()
	at = max(at, m.machine.Now()) // what is left of many things that were due is not late
	if ok && m.disk != nil {
		at = min(at, m.logged+timeLogged)
	}
	if ok && (m.armed == 0 || at < m.armed) {
		m.armed = at
		m.timer.Reset(m.armed - (time.Since(m.start) - m.stopped))
	}
	if len(effects) > 0 {
		p.remote, p.local = m.route(effects)
	}
	commit := m.commit
	if commit != nil && len(p.remote)+len(p.local)+len(staged) > 0 {
		commit.put(p) // with mu: they are in the order of the log
	}
	m.mu.Unlock()
	if commit == nil {
		p.give()
	}
}

// route finds out who is told what. Called with mu.
func (m *Memory) route(effects []core.Effect) (remote []letter, local []*call) {
	for _, e := range effects {
		if l := m.links[e.Session]; l != nil {
			remote = append(remote, letter{l, e})
			continue
		}
		if c := m.calls[e.Ticket]; c != nil {
			delete(m.calls, e.Ticket)
			*c.rep = *e.Reply
			local = append(local, c)
		}
	}
	return remote, local
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
func (m *Memory) attach(c *conn, hello *wire.Request, welcome *wire.Reply) (before link, err error) {
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	m.apply(core.Local, hello, welcome)
	session := uint64(welcome.N)
	before = m.links[session]
	m.links[session] = c
	c.commit = m.commit
	c.session.Store(session)
	c.greet(welcome) // with mu: no other answer may come before it
	if c.commit != nil {
		c.parcels.Add(1)
		c.commit.put(parcel{pos: m.pos, to: c, greet: newGreeting(c, c.unstage())})
	}
	m.release()
	return before, nil
}

// attached reports whether session's answers still go to l. Called with mu.
func (m *Memory) attached(session uint64, l link) bool { return !m.closed && m.links[session] == l }

// detach ends a session: by goodbye, or lost, if l is its link. One that is lost may come back until grace has passed.
func (m *Memory) detach(session uint64, l link, how wire.Op, grace time.Duration) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.part(m.now(), session, l, &wire.Request{Op: how, TTL: grace})
	m.release()
}

// part is how a session ends, or loses its link, if that is l. Called with mu, of a store that is not closed.
func (m *Memory) part(now core.Time, session uint64, l link, how *wire.Request) {
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

// Close ends all waiting calls with ErrClosed. What is not in Dir is forgotten.
func (m *Memory) Close() error {
	m.end(ErrClosed)
	m.mu.Lock()
	disk, first := m.disk, !m.shut
	m.shut = true
	m.mu.Unlock()
	if disk == nil || !first {
		return nil
	}
	m.commit.close()
	return disk.Close()
}

// end ends all calls with err.
func (m *Memory) end(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.timer != nil {
		m.timer.Stop()
	}
	for _, c := range m.calls {
		c.err = err
		close(c.done)
	}
	for session := range m.backups {
		m.forgetBackup(session)
	}
	m.machine, m.calls, m.links = nil, nil, nil
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

// withdrawal is why a waiting call is given up.
type withdrawal struct {
	code  wire.Code // CodeTimeout or CodeCancelled
	cause string    // of a cancel, in words
}

// request is the cancel of the call id.
func (w *withdrawal) request(id uint64) *wire.Request {
	return &wire.Request{Op: wire.OpCancel, ID: id, Group: wire.Contribution{No: w.code, Reason: w.cause}}
}

// await returns nil when done is closed. When ctx ends first, the call is withdrawn. The store then decides it for all ranks, so
// that its answer is waited for, no longer than Grace: the store keeps the deadline itself, and is sent a cancel. A store that
// keeps the deadline later, as a busy one does, is sent a cancel that says so.
func await(ctx context.Context, op wire.Op, done <-chan struct{}, withdraw func(withdrawal)) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	err := ctx.Err()
	passed := errors.Is(err, context.DeadlineExceeded)
	if !passed {
		withdraw(withdrawal{wire.CodeCancelled, causeOf(ctx)})
	}
	if passed && op.Waits() || decides(op) {
		grace := time.NewTimer(Grace)
		defer grace.Stop()
		select {
		case <-done:
			return nil
		case <-grace.C:
		}
	}
	if passed {
		withdraw(withdrawal{code: wire.CodeTimeout})
	}
	return err
}

// causeOf is why ctx was cancelled, in words; "" if nobody has said so.
func causeOf(ctx context.Context) string {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(ctx.Err(), cause) {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // it is part of other ranks' errors, on one line
			return ' '
		}
		return r
	}, cause.Error())
	return strings.ToValidUTF8(text[:min(len(text), mostCause)], "")
}

// mostCause is how many bytes of a cause are told to the other ranks.
const mostCause = 512

// decides reports whether the end of a call to op is something that others must agree on.
func decides(op wire.Op) bool {
	switch op {
	case wire.OpJoin, wire.OpCollect, wire.OpRecv:
		return true
	}
	return false
}
