package core

import (
	"bytes"
	"math"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// entry is a key and its value. The value's bytes never change: a new value is a new slice,
// so that the old one may still be on its way to somebody.
type entry struct {
	key   string
	value []byte
	rev   uint64
	reads uint32 // left; 0 is no limit
	ttl   clock
}

func (e *entry) clock() *clock  { return &e.ttl }
func (e *entry) due(m *Machine) { m.remove(e, wire.ChangeExpire) }

// size is what an entry counts for in Limits.Bytes.
func size(key string, value []byte) int64 { return int64(len(key) + len(value)) }

func (m *Machine) get(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	e := m.entries[req.Key]
	if e == nil {
		rep.Code = wire.CodeNotFound
		return true
	}
	rep.Value, rep.Rev = e.value, e.rev
	m.consume(e)
	return true
}

// consume counts one read of e; the last one takes it out.
func (m *Machine) consume(e *entry) {
	if e.reads == 0 {
		return
	}
	if e.reads--; e.reads == 0 {
		m.remove(e, wire.ChangeExpire)
	}
}

func (m *Machine) set(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, "negative TTL")
	}
	e := m.put(req.Key, req.Value, rep)
	if e == nil {
		return true
	}
	e.reads = req.Reads
	m.disarm(e)
	if req.TTL > 0 {
		m.arm(e, m.after(req.TTL))
	}
	m.wake(e.key)
	return true
}

func (m *Machine) add(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	var old int64
	if e := m.entries[req.Key]; e != nil {
		n, err := strconv.ParseInt(string(e.value), 10, 64)
		if err != nil {
			return refuse(rep, wire.CodeInvalid, "what is there is not a decimal number")
		}
		old = n
	}
	if d := req.Delta; d > 0 && old > math.MaxInt64-d || d < 0 && old < math.MinInt64-d {
		return refuse(rep, wire.CodeInvalid, "the counter would overflow")
	}
	e := m.put(req.Key, strconv.AppendInt(nil, old+req.Delta, 10), rep)
	if e == nil {
		return true
	}
	rep.N = old + req.Delta
	m.wake(e.key)
	return true
}

func (m *Machine) swap(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	e := m.entries[req.Key]
	if e == nil && req.Old != nil {
		rep.Code = wire.CodeConflict
		return true
	}
	if e != nil && (req.Old == nil || !bytes.Equal(e.value, req.Old)) {
		rep.Code, rep.Value, rep.Rev = wire.CodeConflict, e.value, e.rev
		return true
	}
	if req.Value == nil {
		if e != nil {
			m.remove(e, wire.ChangeDelete)
		}
		return true
	}
	if e = m.put(req.Key, req.Value, rep); e == nil {
		return true
	}
	e.reads = 0
	m.disarm(e)
	rep.Value = e.value
	m.wake(e.key)
	return true
}

func (m *Machine) append(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	var old []byte
	if e := m.entries[req.Key]; e != nil {
		old = e.value
	}
	n := len(old) + len(req.Value)
	if n > wire.MaxValue {
		return refuse(rep, wire.CodeTooLarge, "the value would have "+strconv.Itoa(n)+" bytes, the limit is "+strconv.Itoa(wire.MaxValue))
	}
	// Room behind old is nobody's but ours, and is written once: those who still read old do not see it.
	e := m.put(req.Key, append(old, req.Value...), rep)
	if e == nil {
		return true
	}
	rep.N = int64(n)
	m.wake(e.key)
	return true
}

func (m *Machine) delete(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	for _, k := range req.Keys {
		if e := m.entries[k]; e != nil {
			m.remove(e, wire.ChangeDelete)
			rep.N++
		}
	}
	return true
}

// put gives key a value, with a new revision. Nobody hears of it yet: the caller calls wake. It returns nil, and
// the answer in rep, if there is no room.
func (m *Machine) put(key string, value []byte, rep *wire.Reply) *entry {
	e := m.entries[key]
	grow := size(key, value)
	if e != nil {
		grow -= size(e.key, e.value)
	}
	if m.bytes+grow > m.limits.Bytes && grow > 0 {
		refuse(rep, wire.CodeFull, "the limit is "+strconv.FormatInt(m.limits.Bytes, 10)+" bytes")
		return nil
	}
	if e == nil {
		if len(m.entries) >= m.limits.Keys {
			refuse(rep, wire.CodeFull, "the limit is "+strconv.Itoa(m.limits.Keys)+" keys")
			return nil
		}
		e = &entry{key: strings.Clone(key)}
		m.entries[e.key] = e
		m.index.Insert(e.key)
	}
	m.bytes += grow
	m.rev++
	e.value, e.rev = value, m.rev
	rep.Rev = m.rev
	m.changed(e.key, value, wire.ChangeSet)
	return e
}

func (m *Machine) remove(e *entry, how wire.Change) {
	m.disarm(e)
	delete(m.entries, e.key)
	m.index.Delete(e.key)
	m.bytes -= size(e.key, e.value)
	m.rev++
	m.changed(e.key, nil, how)
}

// What one answer to OpList or OpChanges holds at most.
const (
	pageKeys  = 1000
	pageBytes = 1 << 20
)

// list answers a page; N is 1 if there is more.
func (m *Machine) list(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	limit := int64(pageKeys)
	if req.Delta > 0 {
		limit = min(limit, req.Delta)
	}
	from, after := req.Key, len(req.Keys) > 0
	if after {
		from = max(from, req.Keys[0])
	}
	bytes := int64(0)
	m.index.Ascend(from, func(key string) bool {
		if after && key == req.Keys[0] {
			return true
		}
		if !strings.HasPrefix(key, req.Key) {
			return false
		}
		if int64(len(rep.Keys)) == limit || bytes > pageBytes {
			rep.N = 1
			return false
		}
		e := m.entries[key]
		left := Time(0)
		if e.ttl.pos > 0 {
			left = max(e.ttl.at-m.now, 1)
		}
		rep.Keys = append(rep.Keys, key)
		rep.Values = append(rep.Values, e.value)
		rep.Nums = append(rep.Nums, int64(e.rev), int64(left))
		bytes += size(key, e.value)
		return true
	})
	rep.Rev = m.rev
	return true
}
