package core

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// waiter is a call that waits for its answer. It belongs to its owner, and is listed in its session
// until it is answered or forgotten.
type waiter struct {
	Ticket
	op    wire.Op
	owner owner
	rank  int // of its group, if it is a rank's call
	since Time
	timer timer
	cost  int // that its session is charged
}

// owner is what a waiter waits in: a key, a change, a roll, a record, a stream.
type owner interface {
	// drop takes w out for a reason: CodeTimeout and CodeCancelled are answered, CodeLost and CodeLeft
	// are the end of its session, CodeClosed that of its seat.
	drop(m *Machine, w *waiter, why wire.Code)
	// doing says what w.rank of g waits in, for the errors of others; g is nil if it is no rank's call.
	doing(w *waiter) (g *group, what string)
}

// of reports whether w is a call of a rank of g.
func (w *waiter) belongsTo(g *group, rank int) bool {
	of, _ := w.owner.doing(w)
	return of == g && w.rank == rank
}

func (w *waiter) timerState() *timer { return &w.timer }
func (w *waiter) due(m *Machine)     { w.owner.drop(m, w, wire.CodeTimeout) }

// enlist makes w the waiting call t.
func (m *Machine) register(w *waiter, t Ticket, req *wire.Request, o owner) {
	*w = waiter{Ticket: t, op: req.Op, owner: o, rank: req.Group.Rank, since: m.now, cost: callCost(req)}
	m.account.charge(t.Session, w.cost)
	m.sessions[t.Session].waiters[t.ID] = w
	m.calls++
}

// park is enlist with the deadline of the call.
func (m *Machine) park(w *waiter, t Ticket, req *wire.Request, o owner) {
	m.register(w, t, req, o)
	if req.Timeout > 0 {
		m.arm(w, m.after(req.Timeout))
	}
}

// answer answers w and forgets it.
func (m *Machine) answer(w *waiter, rep *wire.Reply) {
	m.effects = append(m.effects, Effect{w.Ticket, w.op, rep})
	m.unregister(w)
}

// forget takes w out of its session. Its owner does so on its own.
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

// gone reports whether why means that nobody is there to be answered.
func sessionEnded(why wire.Code) bool { return why == wire.CodeLost || why == wire.CodeLeft }

// dropAll drops the waiting calls of s that which says.
func (m *Machine) dropAll(s *session, why wire.Code, which func(*waiter) bool) {
	for _, w := range s.inOrder() {
		if w.owner != nil && which(w) { // the drop of one may have answered another
			w.owner.drop(m, w, why)
		}
	}
}

// inOrder lists the waiting calls in the order of their ids: maps have none, and a replay needs one.
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

// clock is a place in the machine's timers. The zero clock is not armed.
type timer struct {
	at   Time
	turn uint64 // those of one time are due in the order in which they were armed
	pos  int    // in the heap, plus 1
}

// timed is what happens at a time.
type timed interface {
	timerState() *timer
	due(m *Machine) // called once, not armed any more
}

// timers are those that are armed, in the order of time.
type timers struct {
	heap timerHeap
	turn uint64 // the last one given
}

// next is when the first is due.
func (t *timers) next() (at Time, armed bool) {
	if len(t.heap) == 0 {
		return 0, false
	}
	return t.heap[0].timerState().at, true
}

// pop disarms the first, if it is due at now.
func (t *timers) pop(now Time) timed {
	if at, armed := t.next(); !armed || at > now {
		return nil
	}
	d := t.heap[0]
	t.disarm(d)
	return d
}

// arm makes d due at a time, whatever it was before.
func (t *timers) arm(d timed, at Time) {
	t.turn++
	t.put(d, TimerState{at, t.turn})
}

// rearm is arm for what was armed before, if it was.
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

// timerHeap is for container/heap.
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

// after is the time in d; one that no clock reaches stays far away, instead of becoming one that has passed.
func (m *Machine) after(d Time) Time {
	if d > math.MaxInt64-m.now {
		return math.MaxInt64
	}
	return m.now + d
}

func (m *Machine) arm(d timed, at Time) { m.timers.arm(d, at) }
func (m *Machine) disarm(d timed)       { m.timers.disarm(d) }
