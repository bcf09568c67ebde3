package core

import (
	"container/list"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// keyWait waits until all of its keys exist at the same time. It is listed under one missing key,
// which is enough: the others do not matter while that one is missing.
type keyWait struct {
	waiter
	keys    []string
	missing int           // index in keys of the key that it is listed under
	place   *list.Element // in the list of that key
}

// wait answers the values of keys, when all of them exist.
func (m *Machine) wait(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	missing, complete := m.firstMissing(req.Keys, 0)
	if complete {
		m.fetch(req.Keys, rep)
		return true
	}
	kw := &keyWait{keys: make([]string, len(req.Keys))}
	for i, k := range req.Keys {
		kw.keys[i] = strings.Clone(k)
	}
	m.park(&kw.waiter, t, req, kw)
	m.waitFor(kw, missing)
	return false
}

// firstMissing returns the index of the first key that does not exist, from an index on and around
// to the one before it.
//
// A wait continues at the key that it was listed under. So, as long as no key is removed, it looks
// at each key at most twice, in whatever order they are set: n keys cost O(n), not O(n²). The
// second look is needed since a key may have been removed after the first one; each removal costs
// at most one more round.
func (m *Machine) firstMissing(keys []string, from int) (at int, complete bool) {
	for i := from; i < len(keys); i++ {
		if m.lookup(keys[i]) == nil {
			return i, false
		}
	}
	for i := range from {
		if m.lookup(keys[i]) == nil {
			return i, false
		}
	}
	return 0, true
}

// fetchBytes bounds the values of one answer, in bytes.
const fetchBytes = 256 << 20

// fetch puts the values of keys, all of which exist, into rep.
func (m *Machine) fetch(keys []string, rep *wire.Reply) {
	rep.Values = make([][]byte, len(keys))
	bytes := 0
	for i, k := range keys {
		rep.Values[i] = m.entries.get(k).val()
		bytes += len(rep.Values[i])
	}
	if bytes > fetchBytes {
		refuse(rep, wire.CodeTooLarge, fmt.Sprintf("%d bytes in one answer, the limit is %d", bytes, fetchBytes))
	}
}

// waitFor lists kw under its key at an index, which must not exist.
func (m *Machine) waitFor(kw *keyWait, missing int) {
	key := kw.keys[missing]
	waits := m.keyWaits[key]
	if waits == nil {
		waits = list.New()
		m.keyWaits[key] = waits
	}
	kw.missing, kw.place = missing, waits.PushBack(kw)
}

// wake answers the calls that waited for key, in the order in which they came. Those that wait for
// another key too go on waiting for that one.
func (m *Machine) wake(key string) {
	waits := m.keyWaits[key]
	if waits == nil {
		return
	}
	delete(m.keyWaits, key)
	var alone *wire.Reply // to all that wait for this key alone
	for p := waits.Front(); p != nil; p = p.Next() {
		kw := p.Value.(*keyWait)
		if missing, complete := m.firstMissing(kw.keys, kw.missing); !complete {
			m.waitFor(kw, missing)
			continue
		}
		rep := alone
		if rep == nil || len(kw.keys) > 1 {
			rep = new(wire.Reply)
			m.fetch(kw.keys, rep)
		}
		if len(kw.keys) == 1 {
			alone = rep
		}
		m.answer(&kw.waiter, rep)
	}
}

func (kw *keyWait) drop(m *Machine, w *waiter, why wire.Code) {
	key := kw.keys[kw.missing]
	if waits := m.keyWaits[key]; waits.Len() > 1 {
		waits.Remove(kw.place)
	} else {
		delete(m.keyWaits, key)
	}
	if sessionEnded(why) {
		m.unregister(w)
		return
	}
	rep := &wire.Reply{Code: why}
	for _, k := range kw.keys {
		if len(rep.Keys) == 100 {
			break
		}
		if m.lookup(k) == nil && !slices.Contains(rep.Keys, k) {
			rep.Keys = append(rep.Keys, k)
		}
	}
	m.answer(w, rep)
}

func (kw *keyWait) doing(*waiter) (*group, string) { return nil, "wait for key " + kw.keys[kw.missing] }
