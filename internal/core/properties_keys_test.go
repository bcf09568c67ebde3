package core_test

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// keys is a model of the store's entries, as simple as possible: every operation of the machine is
// compared with it.
type keys struct {
	rev     uint64
	entries map[string]*keyEntry
	log     []keyChange // the changes of revision 2 and up

	lastLease uint64
	ending    []*lease // that have ended, and had entries at that time

	queues map[string]*queue
}

type keyEntry struct {
	value   []byte
	rev     uint64
	expires core.Time
	lease   *lease
}

type keyChange struct {
	key   string
	value []byte
	how   wire.Change
}

func (k *keys) changed(key string, value []byte, how wire.Change) {
	k.rev++
	k.log = append(k.log, keyChange{key, value, how})
}

// get returns the entry of a key if it is visible: not an expired entry, even if it is not removed
// yet.
func (k *keys) get(key string, now core.Time) *keyEntry {
	if e := k.entries[key]; e != nil && !e.over(now) {
		return e
	}
	return nil
}

func (e *keyEntry) over(now core.Time) bool {
	return e.expires > 0 && e.expires <= now || e.lease != nil && e.lease.over
}

func (k *keys) put(key string, value []byte, now core.Time) *keyEntry {
	if e := k.entries[key]; e != nil && e.over(now) {
		k.remove(key, wire.ChangeExpire)
	}
	e := k.entries[key]
	if e == nil {
		e = &keyEntry{}
		k.entries[key] = e
	}
	k.changed(key, value, wire.ChangeSet)
	e.value, e.rev = value, k.rev
	return e
}

// renew makes e an entry of a lease, or of none.
func (k *keys) renew(key string, e *keyEntry, l *lease) {
	if e.lease != nil {
		e.lease.keys = slices.DeleteFunc(e.lease.keys, func(x string) bool { return x == key })
	}
	e.expires, e.lease = 0, l
	if l != nil {
		l.keys = append(l.keys, key)
	}
}

func (k *keys) remove(key string, how wire.Change) {
	k.renew(key, k.entries[key], nil)
	delete(k.entries, key)
	k.changed(key, nil, how)
}

// expire removes ended entries, as many as one Tick may: first the entries of leases, then the
// expired ones, in order of time.
func (k *keys) expire(a *audit) {
	left := a.w.bounds.ExpireAtOnce
	for ; len(k.ending) > 0 && left > 0; k.ending = k.ending[:len(k.ending)-1] {
		l := k.ending[len(k.ending)-1]
		for ; len(l.keys) > 0 && left > 0; left-- {
			k.remove(l.keys[0], wire.ChangeExpire)
		}
		if len(l.keys) > 0 {
			return
		}
	}
	var due []string
	for key, e := range k.entries {
		if e.over(a.now) {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(x, y string) int {
		return cmp.Or(cmp.Compare(k.entries[x].expires, k.entries[y].expires), cmp.Compare(x, y))
	})
	for _, key := range due[:min(left, len(due))] {
		k.remove(key, wire.ChangeExpire)
	}
}

// carryOut applies a request to the model, and records the expected answer; nil for requests that
// may wait.
func (k *keys) carryOut(a *audit, cl *call) {
	req := &cl.req
	rep := &wire.Reply{}
	e := k.get(req.Key, a.now)
	switch req.Op {
	case wire.OpGet:
		if e == nil {
			rep.Code = wire.CodeNotFound
		} else {
			*rep = wire.Reply{Value: e.value, Rev: e.rev}
		}
	case wire.OpSet:
		k.set(a, cl, rep)
	case wire.OpAdd:
		k.add(a, req, rep)
	case wire.OpSwap:
		k.swap(a, req, rep)
	case wire.OpAppend:
		value := []byte{} // not nil, even if nothing is appended to it
		if e != nil {
			value = append(value, e.value...)
		}
		if len(req.Value) == 0 {
			a.w.tally["appends of nothing"]++
		}
		e = k.put(req.Key, append(value, req.Value...), a.now)
		rep.Rev, rep.N = e.rev, int64(len(e.value))
	case wire.OpPush:
		k.push(a, req, rep)
	case wire.OpPop:
		k.pop(a, req, rep)
	case wire.OpDelete:
		for _, key := range req.Keys {
			if k.get(key, a.now) != nil {
				k.remove(key, wire.ChangeDelete)
				rep.N++
			}
		}
	case wire.OpList:
		k.list(a, cl, rep)
	case wire.OpWatch:
		if req.After <= k.rev { // restarts keep the history, which is long enough here
			return
		}
		rep.Code = wire.CodeCompacted
	default:
		return
	}
	cl.expect = rep
}

func (k *keys) set(a *audit, cl *call, rep *wire.Reply) {
	req := &cl.req
	var l *lease
	if req.Lease != 0 {
		if l, rep.Code = a.leaseOf(cl); l == nil {
			return
		}
		a.w.tally["entries with a lease"]++
	}
	e := k.put(req.Key, req.Value, a.now)
	k.renew(req.Key, e, l)
	if req.TTL > 0 {
		e.expires = a.now + req.TTL
	}
	rep.Rev = e.rev
}

func (k *keys) add(a *audit, req *wire.Request, rep *wire.Reply) {
	old := int64(0)
	if e := k.get(req.Key, a.now); e != nil {
		n, err := strconv.ParseInt(string(e.value), 10, 64)
		if err != nil {
			rep.Code = wire.CodeInvalid
			return
		}
		old = n
	}
	rep.N = old + req.Add
	rep.Rev = k.put(req.Key, strconv.AppendInt(nil, rep.N, 10), a.now).rev
}

func (k *keys) swap(a *audit, req *wire.Request, rep *wire.Reply) {
	e := k.get(req.Key, a.now)
	same := e == nil && req.Expect == nil || e != nil && req.Expect != nil && bytes.Equal(e.value, req.Expect)
	switch {
	case !same && e == nil:
		rep.Code = wire.CodeConflict
	case !same:
		*rep = wire.Reply{Code: wire.CodeConflict, Value: e.value, Rev: e.rev}
	case req.Value != nil:
		e = k.put(req.Key, req.Value, a.now)
		k.renew(req.Key, e, nil)
		rep.Value, rep.Rev = e.value, e.rev
	case e != nil:
		k.remove(req.Key, wire.ChangeDelete)
	}
}

func (k *keys) list(a *audit, cl *call, rep *wire.Reply) {
	for _, key := range slices.Sorted(maps.Keys(k.entries)) {
		if !strings.HasPrefix(key, cl.req.Key) {
			continue
		}
		e := k.get(key, a.now)
		if cl.req.Limit > 0 && int64(len(rep.Keys)) == cl.req.Limit {
			rep.N = 1
			break
		}
		if e == nil {
			continue
		}
		left := core.Time(0)
		if e.expires > 0 {
			left = e.expires - a.now
		}
		rep.Keys, rep.Values = append(rep.Keys, key), append(rep.Values, e.value)
		rep.Nums = append(rep.Nums, int64(e.rev), int64(left))
	}
	rep.Rev = k.rev
}

// answered compares an answer with the expected one.
func (k *keys) answered(a *audit, cl *call, rep *wire.Reply) {
	switch {
	case cl.expect != nil:
		k1SameAnswer(cl, rep)
	case rep.Code == wire.CodeTimeout, rep.Code == wire.CodeCancelled:
	case cl.req.Op == wire.OpWait:
		k1AllThere(a, cl, rep)
	case cl.req.Op == wire.OpWatch:
		k1WhatChanged(k, cl, rep)
	}
}

// k1SameAnswer checks K1: every answer is that of a plain map with deadlines.
func k1SameAnswer(cl *call, rep *wire.Reply) {
	want := *cl.expect
	got := *rep
	got.Detail = ""
	if !bytes.Equal(wire.AppendReply(nil, cl.req.Op, 0, &want), wire.AppendReply(nil, cl.req.Op, 0, &got)) {
		breaks("K1 keys are a map", "%s: %s, not %s", cl, say{rep}, say{&want})
	}
}

// k1AllThere checks K1 for wait: all keys exist at the same time.
func k1AllThere(a *audit, cl *call, rep *wire.Reply) {
	k := &a.keys
	values := make([][]byte, 0, 2)
	for _, key := range cl.req.Keys {
		e := k.get(key, a.now)
		if e == nil {
			breaks("K1 keys are a map", "%s: %s; there is no %q", cl, say{rep}, key)
		}
		values = append(values, e.value)
	}
	if !slices.EqualFunc(values, rep.Values, bytes.Equal) {
		breaks("K1 keys are a map", "%s: %s, not %q", cl, say{rep}, values)
	}
}

// k1WhatChanged checks K1 for watch: the changes after a revision, each once and in order; a call
// that waited gets the first.
func k1WhatChanged(k *keys, cl *call, rep *wire.Reply) {
	var want wire.Reply
	for i, c := range k.log {
		rev := uint64(i) + 2
		if rev <= cl.req.After || cl.req.After == 0 || !strings.HasPrefix(c.key, cl.req.Key) {
			continue
		}
		want.Keys, want.Values = append(want.Keys, c.key), append(want.Values, c.value)
		want.Nums = append(want.Nums, int64(rev), int64(c.how))
		if cl.waited {
			break
		}
	}
	if !slices.Equal(want.Keys, rep.Keys) || !slices.Equal(want.Nums, rep.Nums) || !slices.EqualFunc(want.Values, rep.Values, bytes.Equal) {
		breaks("K1 keys are a map", "%s: %s %v %v, not %v %v", cl, say{rep}, rep.Keys, rep.Nums, want.Keys, want.Nums)
	}
}

// k2NoCallWaitsInVain checks K2: no call waits for keys that all exist, or for a change that has
// happened.
func k2NoCallWaitsInVain(a *audit, cl *call) {
	k := &a.keys
	const p = "K2 no call waits for keys in vain"
	if cl.req.Op == wire.OpWait {
		if !slices.ContainsFunc(cl.req.Keys, func(key string) bool { return k.get(key, a.now) == nil }) {
			breaks(p, "%s", cl)
		}
		return
	}
	for i, c := range k.log {
		if rev := uint64(i) + 2; rev > cl.req.After && strings.HasPrefix(c.key, cl.req.Key) {
			breaks(p, "%s: %q changed with %d", cl, c.key, rev)
		}
	}
}
