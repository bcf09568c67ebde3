package core

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// waiter is a call that waits for its answer. Its owner holds it, and its session lists it until it
// is answered or its session ends.
type waiter struct {
	Ticket
	op    wire.Op
	owner owner
	rank  int // of its group, if a rank made the call
	since Time
	timer timer // its deadline; records have one of their own instead
	cost  int   // bytes that its session is charged
}

// owner is what a call waits in: a key, a change, a rendezvous, a record or a stream.
type owner interface {
	// drop removes w. The code says why: CodeTimeout and CodeCancelled are the answer, CodeClosed
	// is the answer when the rank has left, and CodeLost and CodeLeft are the end of the session,
	// which gets no answer.
	drop(m *Machine, w *waiter, why wire.Code)
	// doing describes the call, for errors of other ranks. g is nil if no rank made it.
	doing(w *waiter) (g *group, what string)
}

// belongsTo reports whether w is a call of a rank of g.
func (w *waiter) belongsTo(g *group, rank int) bool {
	of, _ := w.owner.doing(w)
	return of == g && w.rank == rank
}

func (w *waiter) timerState() *timer { return &w.timer }
func (w *waiter) due(m *Machine)     { w.owner.drop(m, w, wire.CodeTimeout) }

// register makes w the waiting call t, without a deadline, and charges its session.
func (m *Machine) register(w *waiter, t Ticket, req *wire.Request, o owner) {
	*w = waiter{Ticket: t, op: req.Op, owner: o, rank: req.Group.Rank, since: m.now, cost: callCost(req)}
	m.account.charge(t.Session, w.cost)
	m.sessions[t.Session].waiters[t.ID] = w
	m.calls++
}

// park is register with the deadline of the call.
func (m *Machine) park(w *waiter, t Ticket, req *wire.Request, o owner) {
	m.register(w, t, req, o)
	if req.Timeout > 0 {
		m.arm(w, m.after(req.Timeout))
	}
}

// answer puts the answer to w into the effects and unregisters it. The owner must have removed w,
// or do so in the same step.
func (m *Machine) answer(w *waiter, rep *wire.Reply) {
	m.effects = append(m.effects, Effect{w.Ticket, w.op, rep})
	m.unregister(w)
}

// unregister removes w from its session, and releases its charge. Its owner removes it on its own.
func (m *Machine) unregister(w *waiter) {
	m.disarm(w)
	m.account.release(w.Session, w.cost)
	w.cost = 0
	if s := m.sessions[w.Session]; s != nil {
		if s.waiters[w.ID] != nil {
			m.calls--
		}
		delete(s.waiters, w.ID)
		if _, ok := s.resent[w.ID]; ok {
			s.resent[w.ID] = true
		}
	}
	w.owner = nil
}

// sessionEnded reports whether why means that the session of a call has ended, so that it gets no
// answer.
func sessionEnded(why wire.Code) bool { return why == wire.CodeLost || why == wire.CodeLeft }

// dropAll drops the waiting calls of s that which selects.
func (m *Machine) dropAll(s *session, why wire.Code, which func(*waiter) bool) {
	for _, w := range s.inOrder() {
		if w.owner != nil && which(w) { // dropping one call may have answered another
			w.owner.drop(m, w, why)
		}
	}
}

// inOrder lists the waiting calls by id: maps have no order, and a replay needs one.
func (s *session) inOrder() []*waiter {
	if s == nil || len(s.waiters) == 0 {
		return nil
	}
	ws := make([]*waiter, 0, len(s.waiters))
	for _, w := range s.waiters {
		ws = append(ws, w)
	}
	slices.SortFunc(ws, func(a, b *waiter) int { return cmp.Compare(a.ID, b.ID) })
	return ws
}

// timer is a place in the timers of the machine. The zero timer is not armed.
type timer struct {
	at   Time   // when it is due
	turn uint64 // timers of the same time are due in the order in which they were armed
	pos  int    // place in the heap, plus 1; 0 is not armed
}

// timed is what happens at a time.
type timed interface {
	timerState() *timer
	due(m *Machine) // called once, when it is due; it is disarmed before
}

// timers is a heap of what is armed, by time. It does not read a clock: the driver of the machine
// asks Next, and calls Tick. State and replay have the same order, as each arming has a number
// (turn).
type timers struct {
	heap timerHeap
	turn uint64 // the last one given
}

// next returns when the first is due.
func (t *timers) next() (at Time, armed bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].timerState().at, true
}

// pop disarms and returns the first, if it is due at now, or nil.
func (t *timers) pop(now Time) timed {
	if at, armed := t.next(); !armed || at > now {
		return nil
	}
	d := t.heap[0]
	t.disarm(d)
	return d
}

// arm makes d due at a time. It replaces what was armed before.
func (t *timers) arm(d timed, at Time) {
	t.turn++
	t.put(d, TimerState{at, t.turn})
}

// rearm is arm with the number that d had when its state was saved; it does nothing if d was not
// armed then.
func (t *timers) rearm(d timed, as TimerState) {
	if as.At > 0 {
		t.put(d, as)
	}
}

func (t *timers) put(d timed, as TimerState) {
	c := d.timerState()
	c.at, c.turn = as.At, as.Turn
	if c.pos == 0 {
		heap.Push(&t.heap, d)
		return
	}
	heap.Fix(&t.heap, c.pos-1)
}

func (t *timers) disarm(d timed) {
	if pos := d.timerState().pos; pos > 0 {
		heap.Remove(&t.heap, pos-1)
	}
}

// timerHeap implements heap.Interface.
type timerHeap []timed

func (t timerHeap) Len() int { return len(t) }

func (t timerHeap) Less(i, j int) bool {
	a, b := t[i].timerState(), t[j].timerState()
	return a.at < b.at || a.at == b.at && a.turn < b.turn
}

func (t timerHeap) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].timerState().pos, t[j].timerState().pos = i+1, j+1
}

func (t *timerHeap) Push(x any) {
	d := x.(timed)
	*t = append(*t, d)
	d.timerState().pos = len(*t)
}

func (t *timerHeap) Pop() any {
	last := len(*t) - 1
	d := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	d.timerState().pos = 0
	return d
}

// after returns the time d from now. It saturates, so that a duration without end does not become a
// time in the past.
func (m *Machine) after(d Time) Time { return after(m.now, d) }

func after(at, d Time) Time {
	if d > math.MaxInt64-at {
		return math.MaxInt64
	}
	return at + d
}

func (m *Machine) arm(d timed, at Time) { m.timers.arm(d, at) }
func (m *Machine) disarm(d timed)       { m.timers.disarm(d) }
