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

// channel is one use of a channel's name for collective operations: a sequence of records, numbered
// from 1. It begins with the first vote on it. It is freed when every present rank that has voted
// on it has closed it, and no record is left that a rank has not passed.
//
// A rank that has closed a channel may use the name again before the others have closed it. It then
// votes on the channel's successor (next), while the others still vote on this one: a vote is
// always for the first channel of the name that its rank has not closed. All ranks make the same
// calls on a channel, so the votes of two uses never meet, in whatever order they arrive, and
// requests need no number of the use. The streams of a name follow the same rule, each with its two
// ranks (stream.go).
//
// Ranks may be at different places of the sequence: a root of a broadcast does not wait for its
// readers, and a rank with several calls in flight runs ahead. Three rules bound what that costs: a
// root waits when its readers are too far behind (overWindow), a rank that others leave window
// records behind revokes the group (overrun), and a record is freed when all present ranks have
// passed it.
type channel struct {
	g       *group
	payer   uint64 // the session that is charged for it
	name    string
	next    *channel           // the next use of the name, by ranks that have closed this one
	used    []bool             // by rank: it has voted
	floor   []uint64           // by rank: it has passed all records up to here
	records map[uint64]*record // by sequence number
	bytes   int                // of the payloads in records
	blocked []*record          // in order: records whose root waits for its readers
	spare   []vote             // the votes of a freed record, for the next one
}

// closedFloor is the floor of a rank that has closed the channel: no sequence number is above it.
const closedFloor = math.MaxUint64

// The reasons for which a record fails that a rank has passed without a vote, and a send or a
// receive whose other rank has closed the channel.
const (
	reasonSkipped = "it went on to a later call"
	reasonClosed  = "it has closed the channel"
)

// closed reports whether rank has closed ch.
func (ch *channel) closed(rank int) bool { return ch.floor[rank] == closedFloor }

// skipReason returns why a rank that has passed a record has no vote in it.
func (ch *channel) skipReason(rank int) string {
	if ch.closed(rank) {
		return reasonClosed
	}
	return reasonSkipped
}

// channel returns the channel of a name that a vote of rank is for; nil if the next vote begins
// one.
func (g *group) channel(name string, rank int) *channel {
	ch := g.channels[name]
	for ch != nil && ch.closed(rank) {
		ch = ch.next
	}
	return ch
}

// openChannel returns the channel that c is for, and begins it if needed. If the group has too many
// it returns nil, and puts the error into rep.
func (m *Machine) openChannel(g *group, by uint64, c *wire.Contribution, rep *wire.Reply) *channel {
	if ch := g.channel(c.Channel, c.Rank); ch != nil {
		ch.used[c.Rank] = true
		return ch
	}
	if g.channelCount >= m.bounds.channels {
		refuse(rep, wire.CodeFull, fmt.Sprintf("the limit is %d channels of a group; a channel is freed when all ranks that use it have closed it", m.bounds.channels))
		return nil
	}
	n := len(g.members)
	ch := &channel{g: g, payer: by, name: strings.Clone(c.Channel), used: make([]bool, n), floor: make([]uint64, n), records: map[uint64]*record{}}
	ch.used[c.Rank] = true
	g.append(ch)
	m.account.charge(ch.payer, ch.cost())
	return ch
}

// append adds ch as the last channel of its name.
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

// remove removes ch from the channels of its name.
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

// inOrder lists the channels by name, and those of one name in the order in which they began: maps
// have no order, and a replay needs one.
func (g *group) inOrder() (chs []*channel) {
	for _, ch := range slices.SortedFunc(maps.Values(g.channels), func(a, b *channel) int { return cmp.Compare(a.name, b.name) }) {
		for ; ch != nil; ch = ch.next {
			chs = append(chs, ch)
		}
	}
	return chs
}

// closeChannel closes a channel and its streams for one rank, and answers the calls of that rank
// that wait there. A rank that has made no call on the channel has nothing to close.
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

// onChannel reports whether a waiting call is on the channel with a name.
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

// freeIfClosed frees ch if the present ranks that have voted have closed it, and no record is left.
// It is called when a rank closes ch and when a member is removed; no other event can complete the
// condition, as the rank that passes the last record has voted on ch, so it closes ch or is removed
// later.
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

// advance moves the floor of rank up to sequence number upTo: the rank will not ask for records up
// to there again. An open record that requires a vote of rank and does not have it fails with
// reason why.
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

// advancePast moves rank past one record; r may be nil.
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

// fence stops waiting for a removed rank: records that only it had not passed are freed.
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

// free removes a record that all present ranks have passed. Its payloads are released, so roots
// that wait for their readers may go on.
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

// unblockRoots decides the records of roots that need no longer wait.
func (ch *channel) unblockRoots(m *Machine) {
	for {
		i := slices.IndexFunc(ch.blocked, func(r *record) bool { return !ch.overWindow(m, r) })
		if i < 0 {
			return
		}
		m.decide(ch.blocked[i], nil)
	}
}

// overWindow reports whether the root of r must wait: its readers are aheadRecords records, or
// aheadBytes of payloads, behind. This is the flow-control window of a broadcast. Only what comes
// before r counts: ranks with several calls in flight may have opened later records, which cannot
// end before r does, and would block it forever.
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

// slowest returns the present ranks that have passed the fewest records, but for one (-1: none).
func (ch *channel) slowest(except int) (a missing) {
	low := ^uint64(0)
	for rank, f := range ch.floor {
		switch {
		case ch.g.members[rank].gone != wire.CodeOK || f > low || rank == except:
		case f < low:
			low, a = f, missing{[]int{rank}, 1}
		default:
			a.add(rank)
		}
	}
	return a
}

// overrun returns the failure of a channel whose slowest ranks are too far behind.
func (ch *channel) overrun(m *Machine) *wire.Failure {
	v := &wire.Failure{Code: wire.CodeFull, By: -1, Reason: fmt.Sprintf("%d records behind the others", m.bounds.window)}
	m.addMissing(v, ch.g, 0, ch.slowest(-1))
	return v
}
