package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// keyWait waits until all its keys exist at the same time. It is listed under one that is
// missing, which is enough: while that one is missing, nothing else matters.
type keyWait struct {
	waiter
	keys    []string
	missing string
}

func (m *Machine) wait(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	missing, complete := m.firstMissing(req.Keys)
	if complete {
		m.show(req.Keys, rep)
		return true
	}
	kw := &keyWait{keys: make([]string, len(req.Keys))}
	for i, k := range req.Keys {
		kw.keys[i] = strings.Clone(k)
	}
	m.park(&kw.waiter, t, req, kw)
	m.waitFor(kw, strings.Clone(missing))
	return false
}

func (m *Machine) firstMissing(keys []string) (key string, complete bool) {
	for _, k := range keys {
		if m.lookup(k) == nil {
			return k, false
		}
	}
	return "", true
}

// fetchBytes bounds the values of one answer.
const fetchBytes = 256 << 20

// fetch answers the values of keys, all of which exist.
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

// show is fetch for those who only look: if reads are counted, they have to take.
func (m *Machine) show(keys []string, rep *wire.Reply) {
	for _, k := range keys {
		if m.entries.get(k).reads > 0 {
			rep.Code = wire.CodeCounted
			return
		}
	}
	m.fetch(keys, rep)
}

func (m *Machine) waitFor(kw *keyWait, missing string) {
	kw.missing = missing
	m.waits[missing] = append(m.waits[missing], kw)
}

// wake answers those who waited for key, in the order in which they came. Of those who wait for an entry for
// one read, one will take it; the others will wait again.
func (m *Machine) wake(key string) {
	list := m.waits[key]
	if list == nil {
		return
	}
	delete(m.waits, key)
	for _, kw := range list {
		if missing, complete := m.firstMissing(kw.keys); !complete {
			m.waitFor(kw, missing)
			continue
		}
		rep := new(wire.Reply)
		m.show(kw.keys, rep)
		m.answer(&kw.waiter, rep)
	}
}

func (kw *keyWait) drop(m *Machine, w *waiter, why wire.Code) {
	list := m.waits[kw.missing]
	if list = slices.DeleteFunc(list, func(x *keyWait) bool { return x == kw }); len(list) > 0 {
		m.waits[kw.missing] = list
	} else {
		delete(m.waits, kw.missing)
	}
	if gone(why) {
		m.forget(w)
		return
	}
	rep := &wire.Reply{Code: why}
	for _, k := range kw.keys {
		if m.lookup(k) == nil && !slices.Contains(rep.Keys, k) && len(rep.Keys) < 100 {
			rep.Keys = append(rep.Keys, k)
		}
	}
	m.answer(w, rep)
}

func (kw *keyWait) doing(*waiter) (*group, string) { return nil, "wait for key " + kw.missing }
