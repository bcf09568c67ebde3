package core

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// head returns the head of a queue; that of an empty queue is zero. If another entry is in its
// place, ok is false and the error is in rep.
func (m *Machine) head(queue string, rep *wire.Reply) (h wire.QueueHead, ok bool) {
	e := m.lookup(wire.QueueKey(queue))
	if e == nil {
		return wire.QueueHead{}, true
	}
	if h, ok = wire.ParseQueueHead(e.val()); !ok {
		refuse(rep, wire.CodeInvalid, fmt.Sprintf("the value at the queue's name followed by %q was not written by push: delete that key", wire.QueueKey("")))
	}
	return h, ok
}

// push adds a value at the end of a queue. It writes the value first, and removes it again if the
// store has no space for the head of a queue that was empty.
func (m *Machine) push(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	h, ok := m.head(req.Key, rep)
	if !ok {
		return true
	}
	valueKey, headKey := wire.QueuedKey(req.Key, h.Next), wire.QueueKey(req.Key)
	value := m.put(valueKey, req.Value, rep)
	if value == nil {
		return true
	}
	h.Next++
	e := m.put(headKey, wire.AppendQueueHead(nil, h), rep)
	if e == nil {
		m.remove(value, wire.ChangeDelete)
		return true
	}
	m.makePermanent(value) // a client may have set them by hand, with a time to live
	m.makePermanent(e)
	rep.N = h.Len()
	m.wake(valueKey)
	m.wake(headKey)
	return true
}

// pop removes the first value of a queue. N is how many values there were. It passes over values
// that a client has deleted by hand.
func (m *Machine) pop(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	h, ok := m.head(req.Key, rep)
	if !ok {
		return true
	}
	value, number := m.queued(req.Key, h)
	head := m.lookup(wire.QueueKey(req.Key))
	switch {
	case value == nil:
		if head != nil {
			m.remove(head, wire.ChangeDelete)
		}
		rep.Code = wire.CodeNotFound
		return true
	case number+1 == h.Next:
		m.remove(head, wire.ChangeDelete)
	default:
		if m.put(head.key(), wire.AppendQueueHead(nil, wire.QueueHead{First: number + 1, Next: h.Next}), rep) == nil {
			return true
		}
	}
	rep.Value, rep.N = value.val(), int64(h.Next-number)
	m.remove(value, wire.ChangeDelete)
	rep.Rev = m.rev
	return true
}

// queued returns the first value of a queue that exists, and its number; nil if there is none.
func (m *Machine) queued(queue string, h wire.QueueHead) (value *entry, number uint64) {
	if h.Next == 0 {
		return nil, 0
	}
	last := wire.QueuedKey(queue, h.Next-1)
	m.entries.ascend(wire.QueuedKey(queue, h.First), func(e *entry) bool {
		key := e.key()
		if key > last {
			return false
		}
		n, ok := wire.QueuedNumber(queue, key)
		if !ok || m.expired(e) {
			return true
		}
		value, number = e, n
		return false
	})
	return value, number
}
