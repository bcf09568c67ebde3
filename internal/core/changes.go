package core

import (
	"container/list"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// historyBytes bounds the keys and values that the history keeps.
const historyBytes = 16 << 20

// history is a ring of the last changes, in order. Their revisions have no gaps: the change of
// revision r is at list[head+r-first].
type history struct {
	first uint64   // revision of list[head], or of the next change if the history is empty
	list  []Change // before head: freed places
	head  int
	bytes int64
}

// last returns the changes that are kept, in order.
func (h *history) last() []Change { return h.list[h.head:] }

// add appends c, and removes the oldest changes beyond most, or beyond historyBytes.
func (h *history) add(c Change, most int) {
	h.list = append(h.list, c)
	h.bytes += entrySize(c.Key, c.Value)
	for len(h.list)-h.head > most || h.bytes > historyBytes {
		old := &h.list[h.head]
		h.bytes -= entrySize(old.Key, old.Value)
		*old = Change{}
		h.head++
		h.first++
	}
	if h.head > most { // half of it is free: move to the front instead of growing
		n := copy(h.list, h.list[h.head:])
		clear(h.list[n:])
		h.list, h.head = h.list[:n], 0
	}
}

// Change is one change of an entry.
type Change struct {
	Key   string
	Value []byte // nil if the entry was removed
	How   wire.Change
}

// changed records the change that made revision m.rev, and answers the watches of its key.
func (m *Machine) changed(key string, value []byte, how wire.Change) {
	m.history.add(Change{key, value, how}, m.limits.History)
	taken := m.watchers.take(key)
	if len(taken) == 0 {
		return
	}
	rep := &wire.Reply{Rev: m.rev, Keys: []string{key}, Values: [][]byte{value}, Nums: wire.AppendChanged(nil, m.rev, how)}
	for _, w := range taken {
		m.answer(&w.waiter, rep)
	}
}

// watcher is a call that waits for the next change below its prefix.
type watcher struct {
	waiter
	prefix string
	node   *watchNode
	place  *list.Element // in the list of node
}

// changes answers the changes below a prefix after revision req.After, one page at a time, or waits
// for the next one. A revision that the history does not reach back to is CodeCompacted, as in
// etcd: the client lists the entries again. 0 asks for the current revision only.
func (m *Machine) changes(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	h := &m.history
	rep.Rev = m.rev
	switch {
	case req.After == 0: // the current revision
		return true
	case req.After > m.rev || req.After+1 < h.first:
		m.counts.compacted++
		return refuse(rep, wire.CodeCompacted, "list again, and watch from the revision of what was listed")
	}
	bytes := int64(0)
	for i, c := range h.last()[req.After+1-h.first:] {
		rev := req.After + 1 + uint64(i)
		if !strings.HasPrefix(c.Key, req.Key) {
			continue
		}
		if len(rep.Keys) == pageKeys || bytes > pageBytes {
			rep.Rev = rev - 1
			return true
		}
		rep.Keys = append(rep.Keys, c.Key)
		rep.Values = append(rep.Values, c.Value)
		rep.Nums = wire.AppendChanged(rep.Nums, rev, c.How)
		bytes += entrySize(c.Key, c.Value)
	}
	if len(rep.Keys) > 0 {
		return true
	}
	w := &watcher{prefix: strings.Clone(req.Key)}
	m.park(&w.waiter, t, req, w)
	m.watchers.add(w)
	return false
}

func (w *watcher) drop(m *Machine, _ *waiter, why wire.Code) {
	m.watchers.remove(w)
	if sessionEnded(why) {
		m.unregister(&w.waiter)
		return
	}
	m.answer(&w.waiter, &wire.Reply{Code: why})
}

func (w *watcher) doing(*waiter) (*group, string) { return nil, "watch of " + w.prefix }
