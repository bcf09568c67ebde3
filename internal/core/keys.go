package core

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// The operations of keys, which are atomic, and what they do to the entries of the machine.

// entrySize returns what an entry counts for in Limits.Bytes.
func entrySize(key string, value []byte) int64 { return int64(len(key) + len(value)) }

// lookup returns the entry of key, or nil. An expired entry is not returned, even if it has not
// been removed yet. lookup does not remove it: reads are not logged, so a replay would not repeat
// the removal.
func (m *Machine) lookup(key string) *entry {
	if e := m.entries.get(key); e != nil && !m.expired(e) {
		return e
	}
	return nil
}

// expired reports whether e has expired, or its lease has ended.
func (m *Machine) expired(e *entry) bool {
	return e.pos > 0 && m.expiries.at(e) <= m.now || e.lease > 0 && m.leaseRefs[e.lease-1].ended
}

// get answers a value.
func (m *Machine) get(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	e := m.lookup(req.Key)
	if e == nil {
		rep.Code = wire.CodeNotFound
		return true
	}
	rep.Rev = e.rev
	if !req.KeysOnly {
		rep.Value = e.val()
	}
	return true
}

const reasonNegativeTTL = "negative TTL"

// set sets an entry, with the lease and the time to live of the request.
func (m *Machine) set(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, reasonNegativeTTL)
	}
	var l *lease
	if req.Lease != 0 {
		if l = m.leaseOf(t, req.Lease, rep); l == nil {
			return true
		}
	}
	e := m.put(req.Key, req.Value, rep)
	if e == nil {
		return true
	}
	m.makePermanent(e)
	m.attach(e, l)
	m.setTTL(e, req.TTL)
	m.wake(req.Key)
	return true
}

// setTTL makes e expire in ttl, unless that is 0.
func (m *Machine) setTTL(e *entry, ttl Time) {
	if ttl > 0 {
		m.expiries.arm(e, m.after(ttl))
	}
}

// makePermanent makes e an entry without a time to live or a lease.
func (m *Machine) makePermanent(e *entry) {
	m.expiries.disarm(e)
	m.attach(e, nil)
}

// add adds to a counter, a decimal number. One that does not exist is 0.
func (m *Machine) add(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, reasonNegativeTTL)
	}
	var old int64
	before := m.lookup(req.Key)
	if e := before; e != nil {
		n, err := strconv.ParseInt(string(e.val()), 10, 64)
		if err != nil {
			return refuse(rep, wire.CodeInvalid, "the value is not a decimal number")
		}
		old = n
	}
	if d := req.Add; d > 0 && old > math.MaxInt64-d || d < 0 && old < math.MinInt64-d {
		return refuse(rep, wire.CodeInvalid, "the counter would overflow")
	}
	e := m.put(req.Key, strconv.AppendInt(nil, old+req.Add, 10), rep)
	if e == nil {
		return true
	}
	if before == nil {
		m.setTTL(e, req.TTL)
	}
	rep.N = old + req.Add
	m.wake(req.Key)
	return true
}

// swap sets or removes an entry if it has the value Expect; nil is "does not exist".
func (m *Machine) swap(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, reasonNegativeTTL)
	}
	e := m.lookup(req.Key)
	if e == nil && req.Expect != nil {
		rep.Code = wire.CodeConflict
		return true
	}
	if e != nil && (req.Expect == nil || !bytes.Equal(e.val(), req.Expect)) {
		rep.Code, rep.Value, rep.Rev = wire.CodeConflict, e.val(), e.rev
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
	m.makePermanent(e)
	m.setTTL(e, req.TTL)
	rep.Value = e.val()
	m.wake(req.Key)
	return true
}

// append appends to an entry, and makes it if it does not exist.
func (m *Machine) append(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, reasonNegativeTTL)
	}
	var old []byte
	before := m.lookup(req.Key)
	if before != nil {
		old = before.val()
	}
	n := len(old) + len(req.Value)
	// The capacity behind old belongs to the machine, and each byte of it is written once. So readers
	// of the old value are not disturbed.
	e := m.put(req.Key, append(old, req.Value...), rep)
	if e == nil {
		return true
	}
	if before == nil {
		m.setTTL(e, req.TTL)
	}
	rep.N = int64(n)
	m.wake(req.Key)
	return true
}

// delete removes the entries of keys. N is how many existed.
func (m *Machine) delete(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	for _, k := range req.Keys {
		if e := m.lookup(k); e != nil {
			m.remove(e, wire.ChangeDelete)
			rep.N++
		}
	}
	return true
}

// put gives key a value and a new revision. The caller must call wake afterwards, when the entry is
// complete. If the store has no space it returns nil, and puts the error into rep.
func (m *Machine) put(key string, value []byte, rep *wire.Reply) *entry {
	if what, over := m.limits.exceeded(key, value); over {
		refuse(rep, wire.CodeTooLarge, what)
		return nil
	}
	if e := m.entries.get(key); e != nil && m.expired(e) {
		m.remove(e, wire.ChangeExpire)
	}
	e := m.entries.get(key)
	grow := entrySize(key, value)
	if e != nil {
		grow -= entrySize(e.key(), e.val())
	}
	if m.bytes+grow > m.limits.Bytes && grow > 0 {
		refuse(rep, wire.CodeFull, "the limit is "+strconv.FormatInt(m.limits.Bytes, 10)+" bytes")
		return nil
	}
	m.preserve(key, e)
	if e == nil {
		if m.entries.len() >= m.limits.Keys {
			refuse(rep, wire.CodeFull, "the limit is "+strconv.Itoa(m.limits.Keys)+" keys")
			return nil
		}
		e = m.entries.insert(key)
	}
	m.bytes += grow
	m.rev++
	e.setVal(value)
	e.rev = m.rev
	rep.Rev = m.rev
	m.changed(e.key(), e.val(), wire.ChangeSet)
	return e
}

// exceeded reports whether a key or a value is over its limit, and which limit.
func (l *Limits) exceeded(key string, value []byte) (what string, over bool) {
	switch {
	case len(key) > l.Key:
		return fmt.Sprintf("a key of %d bytes, the limit is %d", len(key), l.Key), true
	case len(value) > l.Value:
		return fmt.Sprintf("the value would have %d bytes, the limit is %d", len(value), l.Value), true
	}
	return "", false
}

// remove removes e, and records why.
func (m *Machine) remove(e *entry, how wire.Change) {
	key := e.key()
	m.preserve(key, e)
	m.expiries.disarm(e)
	m.attach(e, nil)
	m.bytes -= entrySize(key, e.val())
	m.entries.remove(e)
	m.rev++
	m.changed(key, nil, how)
}

// firstBelow returns the first entry whose key begins with prefix, or nil.
func (m *Machine) firstBelow(prefix string) (first *entry) {
	m.entries.ascend(prefix, func(e *entry) bool {
		if strings.HasPrefix(e.key(), prefix) {
			first = e
		}
		return false
	})
	return first
}

// What one answer to OpList or OpWatch has at most.
const (
	pageKeys  = 1000
	pageBytes = 1 << 20
)

// list answers a page of the entries below a prefix, in the order of keys. N is 1 if there are
// more.
func (m *Machine) list(_ Ticket, req *wire.Request, rep *wire.Reply) bool {
	limit, values := int64(pageKeys), !req.KeysOnly
	if req.Limit > 0 {
		limit = min(limit, req.Limit)
	}
	from, after := req.Key, len(req.Keys) > 0
	if after {
		from = max(from, req.Keys[0])
	}
	bytes := int64(0)
	m.entries.ascend(from, func(e *entry) bool {
		key := e.key()
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
		if m.expired(e) {
			return true
		}
		left := Time(0)
		if e.pos > 0 {
			left = max(m.expiries.at(e)-m.now, 1)
		}
		rep.Keys = append(rep.Keys, key)
		rep.Nums = wire.AppendListed(rep.Nums, e.rev, left)
		bytes += int64(len(key))
		if values {
			rep.Values = append(rep.Values, e.val())
			bytes += int64(len(e.val()))
		}
		return true
	})
	rep.Rev = m.rev
	return true
}
