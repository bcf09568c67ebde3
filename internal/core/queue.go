package core

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// head is the head of a queue, or one of none if the queue is empty; ok is false, and why in rep, if something else is in its place.
func (m *Machine) head(queue string, rep *wire.Reply) (h wire.QueueHead, ok bool) {
	e := m.lookup(wire.QueueKey(queue))
	if e == nil {
		return wire.QueueHead{}, true
	}
	if h, ok = wire.ParseQueueHead(e.val()); !ok {
		refuse(rep, wire.CodeInvalid, fmt.Sprintf("the entry at the key %q is no queue: delete it", wire.QueueKey(queue)))
	}
	return h, ok
}

// push puts a value at the end of a queue. The value comes first: if there is no room for the head of a queue that was empty, it is
// taken out again.
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
	m.makePermanent(value) // somebody may have set them by hand, with a time to live
	m.makePermanent(e)
	rep.N = h.Len()
	m.wake(valueKey)
	m.wake(headKey)
	return true
}

// pop takes the first value of a queue, and tells how many there were. Values that somebody has deleted by hand are passed over.
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

// queued is the first value that is there of a queue, and its number.
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
