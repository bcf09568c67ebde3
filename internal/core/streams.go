package core

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// streams has the streams of one tag, by destination and then by source: the first stream of each
// pair.
type streams struct {
	g   *group
	tag string
	to  map[int]map[int]*stream
}

// stream returns the first stream of c's tag from src to dst that c.Rank has not closed; nil if the
// next call begins one.
func (g *group) stream(c *wire.Contribution, src, dst int) *stream {
	of := g.tags[c.Channel]
	if of == nil {
		return nil
	}
	st := of.to[dst][src]
	for st != nil && st.closed(c.Rank) {
		st = st.next
	}
	return st
}

// closed reports whether rank, one of the two of st, has closed it.
func (st *stream) closed(rank int) bool {
	return st.src == rank && st.source.Closed || st.dst == rank && st.reading.Closed
}

// absence returns the answer to a call on st that needs rank, if that has left, failed, or closed
// the stream; otherwise nil.
func (st *stream) absence(rank int) *wire.Reply {
	if no := st.of.g.absence(rank); no != nil || !st.closed(rank) {
		return no
	}
	return failureReply(&wire.Failure{Code: wire.CodeSkipped, By: rank, Reason: reasonClosed})
}

// openStream returns the stream that a call of c.Rank is for, and begins it if needed. If the group
// has too many it returns nil, and puts the error into rep.
func (m *Machine) openStream(g *group, by uint64, c *wire.Contribution, src, dst int, rep *wire.Reply) *stream {
	st := g.stream(c, src, dst)
	if st == nil {
		if g.streamCount >= m.bounds.streams {
			refuse(rep, wire.CodeFull, fmt.Sprintf("the limit is %d streams of a group; one is freed when the ranks that use it have closed its channel", m.bounds.streams))
			return nil
		}
		st = &stream{src: src, dst: dst, first: 1, payer: by}
		g.addStream(st, c.Channel)
		m.account.charge(by, st.cost())
	}
	return st
}

// addStream adds st as the last stream of its tag and ranks.
func (g *group) addStream(st *stream, tag string) {
	of := g.tags[tag]
	if of == nil {
		of = &streams{g: g, tag: strings.Clone(tag), to: map[int]map[int]*stream{}}
		g.tags[of.tag] = of
	}
	if of.to[st.dst] == nil {
		of.to[st.dst] = map[int]*stream{}
	}
	at := of.to[st.dst][st.src]
	if at == nil {
		of.to[st.dst][st.src] = st
	} else {
		for at.next != nil {
			at = at.next
		}
		at.next = st
	}
	st.of = of
	g.streamCount++
}

// free removes st and its messages.
func (st *stream) free(m *Machine) {
	m.disarm(st)
	st.each(m.account.release)
	of := st.of
	of.g.streamCount--
	to := of.to[st.dst]
	first := to[st.src]
	switch {
	case first != st:
		for first.next != st {
			first = first.next
		}
		first.next = st.next
		return
	case st.next != nil:
		to[st.src] = st.next
		return
	}
	if delete(to, st.src); len(to) == 0 {
		delete(of.to, st.dst)
	}
	if len(of.to) == 0 {
		delete(of.g.tags, of.tag)
	}
}

// freeIfClosed frees st if its reader is gone, or if the ranks that have used it have closed it and
// no message is left.
func (st *stream) freeIfClosed(m *Machine) {
	there := func(rank int) bool { return st.of.g.members[rank].gone == wire.CodeOK }
	inUse := func(e StreamUse, rank int) bool { return e.Used && !e.Closed && there(rank) }
	if !there(st.dst) || len(st.queue) == 0 && !inUse(st.source, st.src) && !inUse(st.reading, st.dst) {
		st.free(m)
	}
}

// endRank ends the use of st by rank: calls of the other rank that wait get no. Messages that rank
// has sent stay for their reader; messages to it are dropped.
func (st *stream) endRank(m *Machine, rank int, no *wire.Reply) {
	if r := st.reader; r != nil && st.src == rank {
		st.reader = nil
		m.answer(&r.waiter, no)
	}
	if st.dst == rank {
		st.refuseSenders(m, no)
		st.acknowledge(m, math.MaxUint64)
	}
	st.freeIfClosed(m)
}

// close closes the streams of a tag that rank has used.
func (of *streams) close(m *Machine, rank int) {
	for _, st := range of.ofRank(rank) {
		source, reading := st.src == rank && st.source.Used, st.dst == rank && st.reading.Used
		if st.closed(rank) || !source && !reading {
			continue
		}
		st.source.Closed = st.source.Closed || st.src == rank
		st.reading.Closed = st.reading.Closed || st.dst == rank
		st.endRank(m, rank, st.absence(rank))
	}
}

// fence removes a rank that has left or failed from the streams of a tag.
func (of *streams) fence(m *Machine, rank int) {
	for _, st := range of.ofRank(rank) {
		st.endRank(m, rank, of.g.absence(rank))
	}
}

// ofRank lists the streams that rank is the source or the destination of, in a fixed order.
func (of *streams) ofRank(rank int) (all []*stream) {
	for _, dst := range slices.Sorted(maps.Keys(of.to)) {
		if dst == rank {
			for _, src := range slices.Sorted(maps.Keys(of.to[dst])) {
				all = of.to[dst][src].chain(all)
			}
			continue
		}
		all = of.to[dst][rank].chain(all)
	}
	return all
}

// chain appends st and its successors to all.
func (st *stream) chain(all []*stream) []*stream {
	for ; st != nil; st = st.next {
		all = append(all, st)
	}
	return all
}

func (g *group) tagsInOrder() []*streams {
	return slices.SortedFunc(maps.Values(g.tags), func(a, b *streams) int { return cmp.Compare(a.tag, b.tag) })
}

// streamsInOrder lists the streams by tag, destination and source: maps have no order, and a replay
// needs one.
func (g *group) streamsInOrder() (all []*stream) {
	for _, of := range g.tagsInOrder() {
		for _, dst := range slices.Sorted(maps.Keys(of.to)) {
			for _, src := range slices.Sorted(maps.Keys(of.to[dst])) {
				all = of.to[dst][src].chain(all)
			}
		}
	}
	return all
}

// revokeStreams answers every call that waits in a stream of g.
func (m *Machine) revokeStreams(g *group) {
	for _, st := range g.streamsInOrder() {
		if r := st.reader; r != nil {
			st.reader = nil
			m.answer(&r.waiter, g.revoked)
		}
		st.refuseSenders(m, g.revoked)
	}
}
