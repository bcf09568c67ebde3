// Package core is the store as a pure state machine: keys, and the records that decide the
// collective operations of groups. It has no locks, I/O, clocks or goroutines. The same requests at
// the same times give the same answers in the same order: in a server, in a simulation, and in a
// replay of the log (state machine replication, Schneider 1990).
//
//	answered := m.Apply(now, session, &req, &rep)  // rep is the answer, or it comes later:
//	for _, e := range m.Effects() { … }            // answers to requests that were waiting
//	at, armed := m.Next()                          // call Tick then, and Stalled
//
// The caller of a Machine owns the lock, the clock and the connections. Strings of a request may
// alias a buffer: the machine clones what it keeps. The machine owns the values of requests that it
// keeps (see wire.Op.KeepsValue): the caller must not modify them afterwards. It does not modify them either, so
// replies may be sent without the lock.
package core

import (
	"cmp"
	"container/list"
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Time is the running time of the server since it started for the first time. It stands still while
// the server does not run.
type Time = time.Duration

// Local is the session of calls from within the process that holds the machine. It never fails.
const Local uint64 = 0

// Ticket names a call that waits for its answer: the session, and the id that the caller chose.
type Ticket struct{ Session, ID uint64 }

// Effect is the answer to a request that was waiting. Several effects may share one Reply, which
// must not be modified.
type Effect struct {
	Ticket
	Op    wire.Op
	Reply *wire.Reply
}

// Limits bound what the machine holds. Zero fields have the defaults.
type Limits struct {
	Key     int   // bytes of a key; default 8 KiB, and not more
	Value   int   // bytes of a value; default 16 MiB, and not more
	Bytes   int64 // of all keys and values together; default 4 GiB
	Keys    int   // default 16 Mi
	History int   // changes kept for OpWatch; default 8,192
	Waiting int   // calls of one session that wait; default 8,192
	Leases  int   // of one session; default 8,192

	// Held bounds the memory that peers make the machine hold beside entries, in bytes: calls that
	// wait, members of groups, records with their votes, messages, leases, and answers that are not
	// acknowledged; default 4 GiB. HeldOf is the same for one session; default half of Held.
	Held, HeldOf int64
}

func (l Limits) withDefaults() Limits {
	l.Held = cmp.Or(l.Held, 4<<30)
	return Limits{
		Held:    l.Held,
		HeldOf:  cmp.Or(l.HeldOf, l.Held/2),
		Key:     min(cmp.Or(l.Key, wire.MaxKey), wire.MaxKey),
		Value:   min(cmp.Or(l.Value, wire.MaxValue), wire.MaxValue),
		Bytes:   cmp.Or(l.Bytes, 4<<30),
		Keys:    cmp.Or(l.Keys, 16<<20),
		History: cmp.Or(l.History, 8192),
		Waiting: cmp.Or(l.Waiting, 8192),
		Leases:  cmp.Or(l.Leases, 8192),
	}
}

// bounds limit what the members of a group may make the machine keep for each other. They are
// constant; simulations make them small to reach them.
type bounds struct {
	// window is how many records a channel keeps for ranks that have not passed them. One more
	// revokes the generation.
	window int
	// aheadRecords and aheadBytes are how far a root may be ahead of its slowest reader before it
	// waits.
	aheadRecords, aheadBytes int
	// streamMessages and streamBytes are what a stream holds before its senders wait.
	streamMessages, streamBytes int
	// channels and streams are how many of each a group may have at one time.
	channels, streams int
	// unacked is how many answers to numbered requests are kept for a session that does not
	// acknowledge them.
	unacked int
	// expireAtOnce is how many entries one Tick removes at most: they take about 0.1 ms.
	expireAtOnce int
	// stall is the shortest stall of a record, in a group whose ranks report once a second. It is
	// longer in one where they report less often.
	stall Time
	// late is how long a report may take.
	late Time
	// inline is the size of a group up to which the answer to a join has the members.
	inline int
}

var defaultBounds = bounds{
	window: 1024, aheadRecords: 128, aheadBytes: 16 << 20, streamMessages: 64, streamBytes: 16 << 20, unacked: 1024,
	channels: 4096, streams: 1 << 20,
	expireAtOnce: 32, stall: 2 * time.Second, late: 500 * time.Millisecond, inline: wire.MaxInline,
}

// counts are counters for status pages. They are not part of the state: no decision depends on
// them, and checkpoints do not have them.
type counts struct {
	lost      int64 // sessions that failed
	compacted int64 // watches that asked for changes older than the history
}

// Machine is the state of a store. New makes one. It must not be used by several goroutines at the
// same time.
type Machine struct {
	limits Limits
	bounds bounds
	now    Time

	// keys
	rev      uint64 // revision of the last change; it starts at 1, so 0 is no revision
	entries  *table
	bytes    int64                 // of keys and values in entries
	keyWaits map[string]*list.List // of *keyWait, by the key that each is listed under
	history  history
	watchers watchers

	// groups
	sessions      map[uint64]*session
	lastSession   uint64
	leases        map[uint64]*lease
	lastLease     uint64
	leaseRefs     []*lease // leases that have entries, by the reference that these have; nil is free
	freeLeaseRefs []uint32 // references in leaseRefs that are free
	generation    uint64   // the last one issued
	groups        map[uint64]*group
	live          map[groupKey]*group      // the latest generation of each name that has members
	forming       map[groupKey]*rendezvous // groups that are created now
	byGeneration  groupIndex               // groups in the order of their generation
	endedGroups   []endedGroup             // the oldest first
	calls         int                      // how many wait
	counts        counts                   // since the process began
	account       account
	names         map[string]string // interned strings: verbs, types and labels repeat
	plainReplies  []*wire.Reply     // see plainReply

	timers       timers
	stalls       timers   // of records: see Stalled; not part of the state
	expiries     *expiry  // of entries
	endedLeases  []*lease // that still have entries, which Tick removes
	endedKeys    []string // prefixes of the keys of groups that have ended, which Tick deletes
	effects      []Effect
	cancelReason string    // of the cancel in progress, for the ranks that it fails
	executed     bool      // the last Apply carried its request out, and did not refuse it before
	noop         bool      // it changed no state: there was nothing to cancel, or no member
	snapshot     *Snapshot // in progress; nil if there is none
}

// New returns an empty machine.
func New(l Limits) *Machine {
	entries := newTable()
	m := &Machine{
		limits:   l.withDefaults(),
		bounds:   defaultBounds,
		rev:      1,
		entries:  entries,
		expiries: newExpiry(&entries.slab),
		keyWaits: map[string]*list.List{},
		history:  history{first: 2},
		sessions: map[uint64]*session{Local: {waiters: map[uint64]*waiter{}}},
		leases:   map[uint64]*lease{},
		groups:   map[uint64]*group{},
		live:     map[groupKey]*group{},
		forming:  map[groupKey]*rendezvous{},
		names:    map[string]string{},
		account:  newAccount(),
	}
	m.account.charge(Local, sessionCost)
	return m
}

// NumberFrom makes the ids of leases, and generations, begin above id. A machine that replaces one whose
// state is lost must not use those again: a client of both may still hold them, and what checks the ids
// as fencing tokens has seen them.
func (m *Machine) NumberFrom(id uint64) { m.lastLease, m.generation = id, id }

// handler carries out one operation. It fills rep and returns true, or parks the call and returns
// false.
type handler func(m *Machine, t Ticket, req *wire.Request, rep *wire.Reply) bool

var handlers = [...]handler{
	wire.OpHello:        (*Machine).hello,
	wire.OpGoodbye:      (*Machine).goodbye,
	wire.OpLost:         (*Machine).lost,
	wire.OpCancel:       (*Machine).cancel,
	wire.OpPing:         (*Machine).ping,
	wire.OpGet:          (*Machine).get,
	wire.OpSet:          (*Machine).set,
	wire.OpWait:         (*Machine).wait,
	wire.OpAdd:          (*Machine).add,
	wire.OpSwap:         (*Machine).swap,
	wire.OpAppend:       (*Machine).append,
	wire.OpDelete:       (*Machine).delete,
	wire.OpList:         (*Machine).list,
	wire.OpWatch:        (*Machine).changes,
	wire.OpJoin:         (*Machine).join,
	wire.OpLeave:        (*Machine).leave,
	wire.OpFollow:       (*Machine).follow,
	wire.OpCollect:      (*Machine).collect,
	wire.OpSend:         (*Machine).send,
	wire.OpRecv:         (*Machine).recv,
	wire.OpExpired:      (*Machine).expire,
	wire.OpSendReady:    (*Machine).sendReady,
	wire.OpGrant:        (*Machine).grant,
	wire.OpKeepAlive:    (*Machine).keepAlive,
	wire.OpRevoke:       (*Machine).revokeLease,
	wire.OpSkip:         (*Machine).skip,
	wire.OpPush:         (*Machine).push,
	wire.OpPop:          (*Machine).pop,
	wire.OpCloseChannel: (*Machine).closeChannel,
	wire.OpAck:          (*Machine).ack,
	wire.OpMembers:      (*Machine).membersFrom,
	wire.OpProgress:     (*Machine).report,
	wire.OpStalled:      (*Machine).stalled,
}

// Apply carries out req for a session at time now. It reports whether rep is the answer. If not,
// the answer is an Effect of this call or of a later one, with the ticket {sessionID, req.ID}.
//
// A request that waits, and that its client sends again after a reconnect, is found by its id and
// waits on. A numbered request is carried out once, see executeOnce.
func (m *Machine) Apply(now Time, sessionID uint64, req *wire.Request, rep *wire.Reply) (answered bool) {
	m.Advance(now)
	m.executed = false
	*rep = wire.Reply{}
	s := m.sessions[sessionID]
	switch {
	case s == nil:
		return refuse(rep, wire.CodeDenied, "no such session")
	case int(req.Op) >= len(handlers) || handlers[req.Op] == nil:
		return refuse(rep, wire.CodeUnsupported, req.Op.String())
	case req.Op.Waits() && s.waiters[req.ID] != nil && s.waiters[req.ID].op != req.Op:
		return refuse(rep, wire.CodeInvalid, "the id of this call is in use by another waiting call")
	case req.Op.Waits() && s.isResent(req):
		m.executed = true
		return false
	case req.Op.Waits() && len(s.waiters) >= m.limits.Waiting && sessionID != Local:
		return refuse(rep, wire.CodeFull, fmt.Sprintf("the limit is %d waiting calls", m.limits.Waiting))
	}
	m.executed, m.noop = true, false
	if req.Number != 0 && req.Op.Numbered() {
		return m.executeOnce(s, Ticket{sessionID, req.ID}, req, rep)
	}
	answered = handlers[req.Op](m, Ticket{sessionID, req.ID}, req, rep)
	m.executed = !m.noop
	return answered
}

// Tick carries out what is due at now. It removes at most bounds.expireAtOnce expired entries, so
// that other requests wait only briefly; expired entries that remain are not visible.
func (m *Machine) Tick(now Time) {
	m.Advance(now)
	for range m.bounds.expireAtOnce {
		if !m.expireOne() {
			return
		}
	}
}

// Advance carries out what is due at now, without removing entries. Apply begins with it.
func (m *Machine) Advance(now Time) {
	m.now = max(m.now, now)
	for d := m.timers.pop(m.now); d != nil; d = m.timers.pop(m.now) {
		d.due(m)
	}
}

// expireOne removes one entry that has expired, or whose lease or group has ended. It reports
// whether there was one.
func (m *Machine) expireOne() bool {
	for n := len(m.endedKeys); n > 0; n = len(m.endedKeys) {
		if e := m.firstBelow(m.endedKeys[n-1]); e != nil {
			m.remove(e, wire.ChangeDelete)
			return true
		}
		m.endedKeys = m.endedKeys[:n-1]
	}
	for n := len(m.endedLeases); n > 0; n = len(m.endedLeases) {
		l := m.endedLeases[n-1]
		if l.entries.n > 0 {
			m.remove(m.entries.at(l.entries.first), wire.ChangeExpire)
			return true
		}
		m.endedLeases = m.endedLeases[:n-1]
	}
	e := m.expiries.due(m.now)
	if e != nil {
		m.remove(e, wire.ChangeExpire)
	}
	return e != nil
}

// Next returns when Tick or Stalled has something to do; armed is false if never.
func (m *Machine) Next() (at Time, armed bool) {
	if len(m.endedLeases) > 0 || len(m.endedKeys) > 0 {
		return m.now, true
	}
	at, armed = m.expiries.next()
	for _, t := range [...]*timers{&m.timers, &m.stalls} {
		if first, ok := t.next(); ok && (!armed || first < at) {
			at, armed = first, true
		}
	}
	return at, armed
}

// Due reports whether Tick has something to do at now.
func (m *Machine) Due(now Time) bool {
	return len(m.endedLeases) > 0 || len(m.endedKeys) > 0 || m.Overdue(now) || m.Expiring(now)
}

// Overdue reports whether Advance has something to do at now.
func (m *Machine) Overdue(now Time) bool {
	at, armed := m.timers.next()
	return armed && at <= now
}

// Expiring reports whether an entry has expired at now.
func (m *Machine) Expiring(now Time) bool {
	at, armed := m.expiries.next()
	return armed && at <= now
}

// Knows reports whether the session exists.
func (m *Machine) Knows(session uint64) bool { return m.sessions[session] != nil }

// Now returns the latest time that the machine has been given.
func (m *Machine) Now() Time { return m.now }

// Effects returns the answers to waiting requests since its last call. The caller owns the slice,
// but not the replies.
func (m *Machine) Effects() []Effect {
	e := m.effects
	m.effects = nil
	return e
}

// Keys returns the number of entries.
func (m *Machine) Keys() int { return m.entries.len() }

// maxCause bounds the reason of a cancel, in bytes.
const maxCause = 512

// cancel ends a call that waits. If its caller's clock says that the deadline has passed, it times
// out. A join that has succeeded meanwhile is undone: its caller has not learned of the membership,
// and the other ranks would wait for a member that never calls.
func (m *Machine) cancel(t Ticket, req *wire.Request, _ *wire.Reply) bool {
	if w := m.sessions[t.Session].waiters[t.ID]; w != nil {
		why := wire.CodeCancelled
		if req.Group.No == wire.CodeTimeout {
			why = wire.CodeTimeout
		}
		m.cancelReason = req.Group.Reason[:min(len(req.Group.Reason), maxCause)]
		w.owner.drop(m, w, why)
		m.cancelReason = ""
		return true
	}
	g, rank := m.joinedBy(t)
	if m.noop = g == nil; !m.noop {
		m.removeMembers(g, rank)
	}
	return true
}

func (m *Machine) ping(_ Ticket, _ *wire.Request, rep *wire.Reply) bool {
	rep.Rev = m.rev
	return true
}

// refuse puts an error into rep. It returns true: rep is the answer.
func refuse(rep *wire.Reply, code wire.Code, detail string) bool {
	*rep = wire.Reply{Code: code, Detail: detail}
	return true
}

// keep returns a copy of s that does not alias the buffer of a request. Short strings that repeat
// are stored once.
func (m *Machine) keep(s string) string {
	const most, longest = 4096, 64
	if s == "" {
		return ""
	}
	if kept, ok := m.names[s]; ok {
		return kept
	}
	s = strings.Clone(s)
	if len(m.names) < most && len(s) <= longest {
		m.names[s] = s
	}
	return s
}
