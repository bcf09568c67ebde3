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

// keys are the store's entries, in the simplest way that is right: every operation of the machine is compared with it.
type keys struct {
	rev     uint64
	entries map[string]*keyEntry
	log     []keyChange // of revision 2 and up
}

type keyEntry struct {
	value   []byte
	rev     uint64
	reads   uint32
	expires core.Time
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

func (k *keys) put(key string, value []byte) *keyEntry {
	e := k.entries[key]
	if e == nil {
		e = &keyEntry{}
		k.entries[key] = e
	}
	k.changed(key, value, wire.ChangeSet)
	e.value, e.rev = value, k.rev
	return e
}

func (k *keys) remove(key string, how wire.Change) {
	delete(k.entries, key)
	k.changed(key, nil, how)
}

func (k *keys) consume(key string) {
	if e := k.entries[key]; e != nil && e.reads > 0 {
		if e.reads--; e.reads == 0 {
			k.remove(key, wire.ChangeExpire)
		}
	}
}

// expire takes out what is due, in the order of time.
func (k *keys) expire(now core.Time) {
	var due []string
	for key, e := range k.entries {
		if e.expires > 0 && e.expires <= now {
			due = append(due, key)
		}
	}
	slices.SortFunc(due, func(a, b string) int { return cmp.Compare(k.entries[a].expires, k.entries[b].expires) })
	for _, key := range due {
		k.remove(key, wire.ChangeExpire)
	}
}

// carryOut does what a request asks for, and notes the answer that is right; nil for those that may wait.
func (k *keys) carryOut(cl *call) {
	req := &cl.req
	rep := &wire.Reply{}
	e := k.entries[req.Key]
	switch req.Op {
	case wire.OpGet:
		rep.Code = wire.CodeNotFound
		if e != nil {
			*rep = wire.Reply{Value: e.value, Rev: e.rev}
			k.consume(req.Key)
		}
	case wire.OpSet:
		e = k.put(req.Key, req.Value)
		e.reads, e.expires = req.Reads, 0
		if req.TTL > 0 {
			e.expires = cl.at + req.TTL
		}
		rep.Rev = e.rev
	case wire.OpAdd:
		k.add(req, rep)
	case wire.OpSwap:
		k.swap(req, rep)
	case wire.OpAppend:
		var value []byte
		if e != nil {
			value = slices.Clone(e.value)
		}
		e = k.put(req.Key, append(value, req.Value...))
		rep.Rev, rep.N = e.rev, int64(len(e.value))
	case wire.OpDelete:
		for _, key := range req.Keys {
			if k.entries[key] != nil {
				k.remove(key, wire.ChangeDelete)
				rep.N++
			}
		}
	case wire.OpList:
		k.list(cl, rep)
	default:
		return
	}
	cl.expect = rep
}

func (k *keys) add(req *wire.Request, rep *wire.Reply) {
	old := int64(0)
	if e := k.entries[req.Key]; e != nil {
		n, err := strconv.ParseInt(string(e.value), 10, 64)
		if err != nil {
			rep.Code = wire.CodeInvalid
			return
		}
		old = n
	}
	rep.N = old + req.Delta
	rep.Rev = k.put(req.Key, strconv.AppendInt(nil, rep.N, 10)).rev
}

func (k *keys) swap(req *wire.Request, rep *wire.Reply) {
	e := k.entries[req.Key]
	same := e == nil && req.Old == nil || e != nil && req.Old != nil && bytes.Equal(e.value, req.Old)
	switch {
	case !same && e == nil:
		rep.Code = wire.CodeConflict
	case !same:
		*rep = wire.Reply{Code: wire.CodeConflict, Value: e.value, Rev: e.rev}
	case req.Value != nil:
		e = k.put(req.Key, req.Value)
		e.reads, e.expires = 0, 0
		rep.Value, rep.Rev = e.value, e.rev
	case e != nil:
		k.remove(req.Key, wire.ChangeDelete)
	}
}

func (k *keys) list(cl *call, rep *wire.Reply) {
	for _, key := range slices.Sorted(maps.Keys(k.entries)) {
		if !strings.HasPrefix(key, cl.req.Key) {
			continue
		}
		if cl.req.Delta > 0 && int64(len(rep.Keys)) == cl.req.Delta {
			rep.N = 1
			break
		}
		e := k.entries[key]
		left := core.Time(0)
		if e.expires > 0 {
			left = e.expires - cl.at
		}
		rep.Keys, rep.Values = append(rep.Keys, key), append(rep.Values, e.value)
		rep.Nums = append(rep.Nums, int64(e.rev), int64(left))
	}
	rep.Rev = k.rev
}

// answered compares an answer with what is right.
func (k *keys) answered(cl *call, rep *wire.Reply) {
	switch {
	case cl.expect != nil:
		k1SameAnswer(cl, rep)
	case rep.Code == wire.CodeTimeout, rep.Code == wire.CodeCancelled:
	case cl.req.Op == wire.OpWait:
		k1AllThere(k, cl, rep)
	case cl.req.Op == wire.OpChanges:
		k1WhatChanged(k, cl, rep)
	}
}

// K1: every answer is that of a plain map with deadlines and counts of reads.
func k1SameAnswer(cl *call, rep *wire.Reply) {
	want := *cl.expect
	got := *rep
	got.Detail = ""
	if !bytes.Equal(wire.AppendReply(nil, cl.req.Op, 0, &want), wire.AppendReply(nil, cl.req.Op, 0, &got)) {
		breaks("K1 keys are a map", "%s: %s, not %s", cl, say{rep}, say{&want})
	}
}

// K1, wait: all keys are there at the same time, and each is read once.
func k1AllThere(k *keys, cl *call, rep *wire.Reply) {
	values := make([][]byte, 0, 2)
	for _, key := range cl.req.Keys {
		e := k.entries[key]
		if e == nil {
			breaks("K1 keys are a map", "%s: %s; there is no %q", cl, say{rep}, key)
		}
		values = append(values, e.value)
	}
	if !slices.EqualFunc(values, rep.Values, bytes.Equal) {
		breaks("K1 keys are a map", "%s: %s, not %q", cl, say{rep}, values)
	}
	for _, key := range cl.req.Keys {
		k.consume(key)
	}
}

// K1, watch: what changed after a revision, each change once and in order; one that waited gets the first.
func k1WhatChanged(k *keys, cl *call, rep *wire.Reply) {
	var want wire.Reply
	for i, c := range k.log {
		rev := uint64(i) + 2
		if rev <= cl.req.Rev || cl.req.Rev == 0 || !strings.HasPrefix(c.key, cl.req.Key) {
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

// K2: nobody waits for keys that are all there, or for a change that has happened.
func k2NobodyWaitsInVain(k *keys, cl *call) {
	const p = "K2 nobody waits for keys in vain"
	if cl.req.Op == wire.OpWait {
		if !slices.ContainsFunc(cl.req.Keys, func(key string) bool { return k.entries[key] == nil }) {
			breaks(p, "%s", cl)
		}
		return
	}
	for i, c := range k.log {
		if rev := uint64(i) + 2; rev > cl.req.Rev && strings.HasPrefix(c.key, cl.req.Key) {
			breaks(p, "%s: %q changed with %d", cl, c.key, rev)
		}
	}
}
