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

// Limits bounds what a Memory holds. Zero fields mean the defaults.
type Limits = core.Limits

// Memory is the Engine whose state is in this process. The zero value is ready to use.
//
// It drives one core.Machine, which has the semantics: Memory adds the lock, the clock, the log,
// and the delivery of replies. It owns a timer while something has a deadline, and, if it is
// durable, the goroutines of its committer and its disk. A waiting call costs a map entry and a
// channel.
type Memory struct {
	// Set before the first call:
	Limits Limits
	// Dir, if not empty, is a directory for this store only, which is created if it does not exist.
	// Acknowledged changes then survive the end of the process or of the machine at any moment. The
	// reply to a change waits until the change is on disk, together with others (group commit);
	// replies to reads wait for the changes that they show.
	Dir string
	// Replica, an alternative to Dir, keeps the log where another process can take the store over;
	// see package etcdlog.
	Replica Replica
	// ReconnectTimeout is how long sessions may take to reconnect after a restart of a durable
	// store; default 10 s.
	ReconnectTimeout time.Duration
	Logger           *slog.Logger // nil discards

	mu          sync.Mutex // protects the fields below; never held during I/O
	machine     *core.Machine
	start       time.Time
	stopped     time.Duration // time since start during which this process was stopped
	heldUntil   core.Time     // machine time until which the last deadline that passed in a stop is held
	timer       *time.Timer
	timerAt     core.Time // machine time at which timer fires; 0: not running
	calls       map[core.Ticket]*call
	conns       map[uint64]sessionConn // connections of a Server, by session
	lastID      uint64
	closed      bool
	closeCalled bool // Close has been called

	incarnation uint64 // of the state: a session of another one cannot be resumed

	fs            durable.FS    // of Dir, in tests; nil: the system's
	disk          *durable.Disk // nil if the store is not durable
	commit        *committer    // nil if the store is not durable
	pos           uint64        // position of the last event in the log
	loggedTime    core.Time     // machine time of that event
	lastCommitted uint64        // commit.Committed at the last call of creditStall
	waitedForDisk bool          // whether requests waited for it then
	meter         meter
	backups       map[uint64]*backupCopy // backups that are being read, by session
	backupsBegun  uint64                 // number of backups begun
	queries       []*stackQuery          // for stacks of sessions
	failure       error                  // why the store has failed; closed is true then
	failed        chan struct{}          // closed when failure is set
}

// isDurable reports whether the state outlives this process.
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

// sessionConn is the connection of a session: a conn, or a relayedConn.
type sessionConn interface {
	// deliver queues a reply that shows the log up to pos. encode encodes a reply to several
	// sessions only once.
	deliver(e core.Effect, pos uint64, encode *encoder)
	Flush()
	close()
	fail(why *wire.Reply)     // passes the reason to the peer, and closes the connection
	silentFor() time.Duration // how long ago something was received from the peer
	askStacks()               // asks the peer for its stacks; see stacks.go
}

// A process that was stopped finds all deadlines passed when it continues, although its peers have
// kept them. Time during which it was stopped therefore does not count. A timer that fires more
// than maxTimerDelay late indicates a stop. The machine's clock then stands still just before the
// deadline for catchUpTime, so that what is in the sockets is read first, and goes on as if it had
// not: what is set meanwhile ends up to catchUpTime early. A deadline is held once: if the process
// is stopped again meanwhile, it has passed.
const (
	maxTimerDelay = 100 * time.Millisecond
	catchUpTime   = 20 * time.Millisecond
)

// open makes m ready. The caller holds mu.
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
		m.machine.NumberFrom(uint64(time.Now().UnixMicro()))
	} else if err := m.openDisk(); err != nil {
		return err
	}
	m.start = time.Now().Add(-m.machine.Now())
	m.calls = map[core.Ticket]*call{}
	m.conns = map[uint64]sessionConn{}
	m.timer = time.AfterFunc(time.Hour, m.tick)
	m.timer.Stop()
	return nil
}

// Open makes m ready, as the first call would, and returns any error of Dir or Replica.
func (m *Memory) Open() error {
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return err
	}
	m.unlockAndDeliver()
	return nil
}

// now returns the machine's time. The caller holds mu.
func (m *Memory) now() core.Time {
	now := time.Since(m.start) - m.stopped
	if due := max(m.timerAt, m.heldUntil); m.timerAt > 0 && now > due+maxTimerDelay {
		m.stopped += now - due
		now = due
		if m.heldUntil < m.timerAt {
			m.heldUntil = m.timerAt + catchUpTime
		}
	}
	if now < m.heldUntil {
		return m.heldUntil - catchUpTime - 1
	}
	return now
}

// requests are pooled: the machine keeps none.
var requests = sync.Pool{New: func() any { return new(wire.Request) }}

// Do implements Engine.
func (m *Memory) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	switch err := validate(req); {
	case err != nil: // a log with such a request could not be read again
		return err
	case req.Op == wire.OpBackup:
		return m.answerBackup(ctx, req.Session, req.Offset, rep)
	case req.Op == wire.OpStacks:
		return m.stacks(ctx, req, rep)
	}
	own := requests.Get().(*wire.Request)
	*own = *req
	defer func() { *own = wire.Request{}; requests.Put(own) }()
	if req.Op.KeepsValue() {
		own.Value = core.CopyValue(req.Value)
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
		if before := m.calls[ticket]; before != nil { // the call was sent again after a reconnect; only the last one waits
			before.end(ErrClosed)
		}
		c = &call{rep: rep, done: make(chan struct{})}
		m.calls[ticket] = c
	}
	commit, pos := m.commit, m.position()
	m.unlockAndDeliver()
	var err error
	switch {
	case !answered:
		err = m.await(ctx, own, c)
	case commit != nil && (own.Op != wire.OpStatus || commit.disk.Shared()): // a status reports that the disk stalls, and does not wait for it
		if err = commit.await(ctx, pos); err != nil && own.Op.Numbered() {
			err = unknownOutcome(err)
		}
	}
	// Nothing changes the bytes of a value: the machine replaces it, or appends to it.
	if err == nil && (own.Op != wire.OpGet || !own.Borrow) {
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

// apply carries out a request on the machine. The caller holds mu.
func (m *Memory) apply(session uint64, req *wire.Request, rep *wire.Reply) (answered bool) {
	if req.Op == wire.OpHello {
		req.Token = newToken()
		if req.Incarnation != m.incarnation {
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

// newToken returns the token that a client needs to resume its session.
func newToken() []byte {
	token := make([]byte, 16)
	_, _ = crand.Read(token) // never fails
	return token
}

// await waits for c's reply, and cancels the call when ctx ends.
func (m *Memory) await(ctx context.Context, req *wire.Request, c *call) error {
	err := await(ctx, req.Op, c.done, func(why cancellation) {
		m.mu.Lock()
		if m.closed {
			m.mu.Unlock()
			return
		}
		m.applyLogged(m.now(), req.Session, why.request(req.ID), new(wire.Reply))
		m.unlockAndDeliver()
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
	case commit != nil: // answered; the log may take longer than the caller waits
		select {
		case <-c.done:
		default:
			return err
		}
	}
	<-c.done
	return c.err
}

// unlockAndDeliver ends a step: it sets the timer, unlocks mu, and delivers the replies that the
// step has produced.
func (m *Memory) unlockAndDeliver() {
	effects, pos := m.machine.Effects(), m.position()
	at, ok := m.machine.Next()
	at = max(at, m.machine.Now()) // the rest of many due events is not late
	if ok && m.disk != nil {
		at = min(at, m.loggedTime+timeLogInterval)
	}
	if ok && (m.timerAt == 0 || at < m.timerAt) {
		m.timerAt = at
		m.timer.Reset(max(m.timerAt, m.heldUntil) - (time.Since(m.start) - m.stopped))
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

// route separates the effects into replies to connections and calls in this process. The caller
// holds mu.
func (m *Memory) route(effects []core.Effect) (answers []delivery, calls []*call) {
	for _, e := range effects {
		if l := m.conns[e.Session]; l != nil {
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

// tick processes due events, in small portions. Between two of them it yields, because a mutex
// alone would be handed to waiting goroutines only after a delay.
func (m *Memory) tick() {
	for m.tickOnce() {
		runtime.Gosched()
	}
}

// tickOnce processes a portion, and reports whether more is due.
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
		m.timerAt = now // tick continues: no timer is needed
	} else {
		m.timerAt = 0
	}
	m.unlockAndDeliver()
	return more
}

// attach opens the session that hello asks for, or resumes it. From now on its replies go to c, the
// welcome first, and requests of its previous connection are ignored; attach returns that
// connection, which the caller closes.
func (m *Memory) attach(c *conn, hello *wire.Request, welcome *wire.Reply) (before sessionConn, err error) {
	m.mu.Lock()
	if err := m.open(); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	m.apply(core.Local, hello, welcome)
	session := uint64(welcome.N)
	before = m.conns[session]
	m.conns[session] = c
	c.session.Store(session)
	c.sendWelcome(welcome) // with mu: the welcome must be the first reply
	c.welcomed = c.out.Held()
	if c.welcomed > 0 && !m.disk.Shared() { // not with a shared log: another process may lead
		time.AfterFunc(slowDisk, func() {
			c.out.Release(c.welcomed)
			c.out.Flush()
		})
	}
	m.unlockAndDeliver()
	return before, nil
}

// attached reports whether l is the connection of session. The caller holds mu.
func (m *Memory) attached(session uint64, l sessionConn) bool {
	return !m.closed && m.conns[session] == l
}

// detach ends a session, if l is its connection: by OpGoodbye, or by OpLost with the time in which
// it may be resumed.
func (m *Memory) detach(session uint64, l sessionConn, how wire.Op, grace time.Duration) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.endSession(m.now(), session, l, &wire.Request{Op: how, TTL: grace})
	m.unlockAndDeliver()
}

// endSession removes l, if it is the session's connection, and applies how. The caller holds mu,
// and the store is not closed.
func (m *Memory) endSession(now core.Time, session uint64, l sessionConn, how *wire.Request) {
	if m.attached(session, l) {
		delete(m.conns, session)
		m.closeBackup(session)
		m.applyLogged(now, session, how, new(wire.Reply))
	}
}

// Keys returns the number of entries.
func (m *Memory) Keys() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.machine == nil {
		return 0
	}
	return m.machine.Keys()
}

// Close ends all waiting calls with ErrClosed, and the connections of a Server that is still
// running. The content of a store without Dir or Replica is lost. It may be called twice.
func (m *Memory) Close() error {
	links := m.endCalls(ErrClosed)
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

// endCalls closes the store for further calls, ends all calls with err, and returns the
// connections, which the caller closes.
func (m *Memory) endCalls(err error) (links map[uint64]sessionConn) {
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
		m.closeBackup(session)
	}
	links = m.conns
	m.machine, m.calls, m.conns = nil, nil, nil
	return links
}

// clone copies the content of rep for the caller: the machine's values are shared.
func clone(rep *wire.Reply) {
	rep.Value = bytes.Clone(rep.Value)
	rep.Values = cloneAll(rep.Values)
	rep.Keys = slices.Clone(rep.Keys)
	rep.Type = strings.Clone(rep.Type)
}

// cloneAll copies values into one allocation, because an all-gather has many small ones.
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
