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

// channel is one use of a channel's name for collective verbs: a sequence of records. It begins with the first vote on it, and is freed when
// every rank that has voted on it has closed it, unless a record is left that another rank has not passed. Ranks that are gone do not count.
//
// A rank that has closed a channel may use its name again before the others have closed it. It then votes on the channel's successor, while
// they still vote on this one: a vote is always for the first channel of the name that its rank has not closed. All ranks make the same calls
// on a channel, so the votes of two uses never meet, whatever the order in which they arrive, and requests carry the name alone. The streams
// of a name follow the same rule, each with its two ranks (stream.go).
type channel struct {
	g       *group
	payer   uint64 // session that is charged for it
	name    string
	next    *channel // of the same name, opened by a rank that has closed this one
	used    []bool   // by rank: it has voted
	floor   []uint64 // by rank: it has passed every record up to here; closedFloor if it has closed the channel
	records map[uint64]*record
	bytes   int       // of the payloads in records
	blocked []*record // have their root's yes, which waits for room; in order
	spare   []vote    // for the next record
}

// closedFloor is the floor of a rank that has closed the channel: no sequence number is beyond it.
const closedFloor = math.MaxUint64

// Why a record fails that a rank has passed without a vote, and a send or recv fails whose other rank has closed the channel.
const (
	reasonSkipped = "it went on to a later call"
	reasonClosed  = "it has closed the channel"
)

// closed reports whether rank has closed ch.
func (ch *channel) closed(rank int) bool { return ch.floor[rank] == closedFloor }

// whySkipped is why there is no vote of a rank that has passed a record.
func (ch *channel) skipReason(rank int) string {
	if ch.closed(rank) {
		return reasonClosed
	}
	return reasonSkipped
}

// channel is the channel that a vote of rank is for; nil if that has not begun.
func (g *group) channel(name string, rank int) *channel {
	ch := g.channels[name]
	for ch != nil && ch.closed(rank) {
		ch = ch.next
	}
	return ch
}

// openChannel finds the channel that c is for, or begins it; nil, and why in rep, if there are too many.
func (m *Machine) openChannel(g *group, by uint64, c *wire.Contribution, rep *wire.Reply) *channel {
	if ch := g.channel(c.Channel, c.Rank); ch != nil {
		ch.used[c.Rank] = true
		return ch
	}
	if g.channelCount >= m.bounds.channels {
		refuse(rep, wire.CodeFull, fmt.Sprintf("the limit is %d channels of a group; one is freed when all ranks that use it have closed it", m.bounds.channels))
		return nil
	}
	n := len(g.members)
	ch := &channel{g: g, payer: by, name: strings.Clone(c.Channel), used: make([]bool, n), floor: make([]uint64, n), records: map[uint64]*record{}}
	ch.used[c.Rank] = true
	g.append(ch)
	m.account.charge(ch.payer, ch.cost())
	return ch
}

// append makes ch the last channel of its name.
func (g *group) append(ch *channel) {
	g.channelCount++
	last := g.channels[ch.name]
	if last == nil {
		g.channels[ch.name] = ch
		return
	}
	for last.next != nil {
		last = last.next
	}
	last.next = ch
}

// remove takes ch out of those of its name.
func (g *group) remove(ch *channel) {
	g.channelCount--
	first := g.channels[ch.name]
	switch {
	case first != ch:
		for first.next != ch {
			first = first.next
		}
		first.next = ch.next
	case ch.next != nil:
		g.channels[ch.name] = ch.next
	default:
		delete(g.channels, ch.name)
	}
}

// inOrder lists the channels by name, those of one name in the order in which they began: maps have no order, and a replay needs one.
func (g *group) inOrder() (chs []*channel) {
	for _, ch := range slices.SortedFunc(maps.Values(g.channels), func(a, b *channel) int { return cmp.Compare(a.name, b.name) }) {
		for ; ch != nil; ch = ch.next {
			chs = append(chs, ch)
		}
	}
	return chs
}

// closeChannel closes a channel and its streams for one rank, with the calls of that rank that wait there. Where it has made no call, there
// is nothing to close.
func (m *Machine) closeChannel(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	c := &req.Group
	g, s := m.memberOf(t, c, rep)
	if g == nil {
		return true
	}
	s.noteCall(m, "close", 0)
	m.dropAll(m.sessions[t.Session], wire.CodeClosed, func(w *waiter) bool { return w.belongsTo(g, c.Rank) && onChannel(w.owner, c.Channel) })
	if ch := g.channel(c.Channel, c.Rank); ch != nil && ch.used[c.Rank] {
		ch.advance(m, c.Rank, closedFloor, reasonClosed)
		ch.freeIfClosed(m)
	}
	if of := g.tags[c.Channel]; of != nil {
		of.close(m, c.Rank)
	}
	return true
}

// isOn reports whether a waiting call is on the channel of a name.
func onChannel(o owner, channel string) bool {
	switch o := o.(type) {
	case *record:
		return o.ch.name == channel
	case *sender:
		return o.stream.of.tag == channel
	case *reader:
		return o.stream.of.tag == channel
	}
	return false
}

// freeIfClosed frees ch if the ranks that have voted have closed it, and no record is left. The rank that passes the last record has voted,
// and closes ch or is gone later: no other moment can be the one.
func (ch *channel) freeIfClosed(m *Machine) {
	if len(ch.records) > 0 {
		return
	}
	for rank, used := range ch.used {
		if used && ch.g.members[rank].gone == wire.CodeOK && !ch.closed(rank) {
			return
		}
	}
	m.account.release(ch.payer, ch.cost())
	ch.g.remove(ch)
}

// pass moves the floor of rank: it needs nothing up to seq any more. A record that it passes without having voted cannot be decided by a yes
// any more, and fails for why.
func (ch *channel) advance(m *Machine, rank int, upTo uint64, why string) {
	old := ch.floor[rank]
	if upTo <= old {
		return
	}
	ch.floor[rank] = upTo
	if upTo == old+1 {
		ch.advancePast(m, rank, ch.records[upTo], why)
		return
	}
	for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
		if seq > old && seq <= upTo {
			ch.advancePast(m, rank, ch.records[seq], why)
		}
	}
}

func (ch *channel) advancePast(m *Machine, rank int, r *record, why string) {
	if r == nil {
		return
	}
	r.pending--
	if r.open() && r.lacks(rank) {
		m.decide(r, failureReply(m.refusal(r, rank, wire.CodeSkipped, why)))
		return
	}
	if r.done && r.pending == 0 {
		ch.free(m, r)
	}
}

// fence takes a rank that is gone out of those that still need records.
func (ch *channel) fence(m *Machine, rank int) {
	for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
		if r := ch.records[seq]; r != nil && ch.floor[rank] < seq {
			if r.pending--; r.pending == 0 && r.done {
				ch.free(m, r)
			}
		}
	}
	ch.freeIfClosed(m)
}

// free forgets a record that nobody needs; a root that waited for room goes on.
func (ch *channel) free(m *Machine, r *record) {
	if ch.records[r.seq] != r {
		return
	}
	delete(ch.records, r.seq)
	ch.bytes -= r.bytes
	r.each(m.account.release)
	clear(r.votes)
	ch.spare = r.votes
	r.votes = nil
	ch.unblockRoots(m)
}

// admit lets those roots go on for which there is room now.
func (ch *channel) unblockRoots(m *Machine) {
	for {
		i := slices.IndexFunc(ch.blocked, func(r *record) bool { return !ch.overWindow(m, r) })
		if i < 0 {
			return
		}
		m.decide(ch.blocked[i], nil)
	}
}

// crowded reports whether the readers are too far behind for the root of r to go on. Only what comes before r
// counts: ranks that do not wait for their answers may have opened later records, which cannot end before r does.
func (ch *channel) overWindow(m *Machine, r *record) bool {
	if len(ch.records) <= m.bounds.aheadRecords && ch.bytes <= m.bounds.aheadBytes {
		return false
	}
	before, bytes := 0, r.bytes
	for seq, x := range ch.records {
		if seq < r.seq {
			before++
			bytes += x.bytes
		}
	}
	return before >= m.bounds.aheadRecords || before > 0 && bytes > m.bounds.aheadBytes
}

// slowest are the ranks that are there and have passed the least.
func (ch *channel) slowest() (ranks []int) {
	low := ^uint64(0)
	for rank, f := range ch.floor {
		switch {
		case ch.g.members[rank].gone != wire.CodeOK || f > low:
		case f < low:
			low, ranks = f, []int{rank}
		default:
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// overrun is the verdict of a channel whose slowest ranks are too far behind.
func (ch *channel) overrun(m *Machine) *wire.Failure {
	ranks := ch.slowest()
	return &wire.Failure{
		Code: wire.CodeFull, By: -1, Missing: ranks, Doing: m.doing(ch.g, ranks),
		Reason: fmt.Sprintf("%d records behind the others", m.bounds.window),
	}
}
