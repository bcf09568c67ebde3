package core

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Bounds are the limits of what a group may hold, made small for simulations. Zero fields keep
// their defaults.
type Bounds struct {
	Window, AheadRecords, AheadBytes, StreamMessages, StreamBytes, Unacked, ExpireAtOnce, Channels, Streams, Inline int
	Stall, Late                                                                                                     Time
}

// SetBounds changes the bounds of a Machine that holds nothing yet, and returns all of them.
func (m *Machine) SetBounds(b Bounds) Bounds {
	set := func(to *int, n int) int {
		if n > 0 {
			*to = n
		}
		return *to
	}
	if b.Stall > 0 {
		m.bounds.stall, m.bounds.late = b.Stall, b.Late
	}
	return Bounds{
		set(&m.bounds.window, b.Window), set(&m.bounds.aheadRecords, b.AheadRecords), set(&m.bounds.aheadBytes, b.AheadBytes),
		set(&m.bounds.streamMessages, b.StreamMessages), set(&m.bounds.streamBytes, b.StreamBytes),
		set(&m.bounds.unacked, b.Unacked), set(&m.bounds.expireAtOnce, b.ExpireAtOnce),
		set(&m.bounds.channels, b.Channels), set(&m.bounds.streams, b.Streams), set(&m.bounds.inline, b.Inline), m.bounds.stall, m.bounds.late,
	}
}

// OnlyLooks reports whether no call or session has a deadline, and records may stall.
func (m *Machine) OnlyLooks() bool { return len(m.stalls.heap) > 0 && len(m.timers.heap) == 0 }

// Stalls counts the records that may stall.
func (m *Machine) Stalls() int { return len(m.stalls.heap) }

// Holdings counts what a Machine holds.
type Holdings struct {
	Sessions, Waiters, Members       int // Sessions does not count Local
	Groups, Live, Forming, Shrinks   int
	Channels, Records, Streams       int
	Messages, Follows                int
	Waits, Watchers, Timers, Effects int
	Stalls                           int
	// Answers: those kept; Held: leases with entries; Ending: those of them that have ended
	Answers, Leases, Held, Ending int
	// waiters as they are counted, and groups as they are listed
	Calls, Ordered int
}

// Holdings returns the counts of all that m holds except keys.
func (m *Machine) Holdings() Holdings {
	h := Holdings{
		Sessions: len(m.sessions) - 1, Groups: len(m.groups), Live: len(m.live), Forming: len(m.forming),
		Calls: m.calls, Ordered: len(m.byGeneration.list) - m.byGeneration.holes,
		Watchers: m.watchers.n, Timers: len(m.timers.heap), Stalls: m.Stalls(), Effects: len(m.effects), Leases: len(m.leases), Held: len(m.leaseRefs) - len(m.freeLeaseRefs), Ending: len(m.endedLeases),
	}
	for _, s := range m.sessions {
		h.Waiters += len(s.waiters)
		h.Members += len(s.memberships)
		h.Answers += len(s.answers)
	}
	for _, waits := range m.keyWaits {
		h.Waits += waits.Len()
	}
	for _, g := range m.groups {
		h.Follows += len(g.follows)
		h.Channels += g.channelCount
		h.Streams += g.streamCount
		if g.shrink != nil {
			h.Shrinks++
		}
		for _, ch := range g.inOrder() {
			h.Records += len(ch.records)
		}
		for _, st := range g.streamsInOrder() {
			h.Messages += len(st.queue)
		}
	}
	return h
}

// channel returns the channel whose name has been used use times before.
func (m *Machine) channel(generation uint64, name string, use int) *channel {
	g := m.groups[generation]
	if g == nil {
		return nil
	}
	ch := g.channels[name]
	for ; ch != nil && use > 0; use-- {
		ch = ch.next
	}
	return ch
}

// Records counts the records of a channel.
func (m *Machine) Records(generation uint64, name string, use int) int {
	if ch := m.channel(generation, name, use); ch != nil {
		return len(ch.records)
	}
	return 0
}

// Opened counts the channels and the streams of a group.
func (m *Machine) Opened(generation uint64) (channels, streams int) {
	if g := m.groups[generation]; g != nil {
		return g.channelCount, g.streamCount
	}
	return 0, 0
}

// RecordState is the state of a record that tests can inspect.
type RecordState struct {
	Done, Failed       bool
	Yes, Pending, Size int
}

// Record returns the state of one record.
func (m *Machine) Record(generation uint64, name string, use int, seq uint64) (s RecordState, there bool) {
	ch := m.channel(generation, name, use)
	if ch == nil || ch.records[seq] == nil {
		return s, false
	}
	r := ch.records[seq]
	return RecordState{Done: r.done, Failed: r.failed != nil, Yes: r.yes, Pending: r.pending, Size: r.bytes}, true
}

// WatchNodes counts the nodes of the tree of watched prefixes without its root, and reports whether
// all of them are needed and in order.
func (m *Machine) WatchNodes() (n int, sound bool) {
	var walk func(x *watchNode) bool
	walk = func(x *watchNode) bool {
		if x.parent != nil {
			n++
			if x.watchers.Len() == 0 && len(x.children) < 2 {
				return false
			}
		}
		for i, c := range x.children {
			at := len(x.prefix)
			if c.parent != x || len(c.prefix) <= at || c.prefix[:at] != x.prefix || i > 0 && x.children[i-1].prefix[at] >= c.prefix[at] || !walk(c) {
				return false
			}
		}
		return true
	}
	return n, walk(&m.watchers.root)
}

// Groups counts the generations that m holds.
func (m *Machine) Groups() int { return len(m.groups) }

// Queue counts the messages of a stream.
func (m *Machine) Queue(generation uint64, src, dst int, tag string, use int) int {
	g := m.groups[generation]
	if g == nil || g.tags[tag] == nil {
		return 0
	}
	st := g.tags[tag].to[dst][src]
	for ; st != nil && use > 0; use-- {
		st = st.next
	}
	if st == nil {
		return 0
	}
	return len(st.queue)
}

// Kept counts the answers that m keeps for a session.
func (m *Machine) Kept(session uint64) int {
	if s := m.sessions[session]; s != nil {
		return len(s.answers)
	}
	return 0
}

// Leases counts the leases that have not ended.
func (m *Machine) Leases() int { return len(m.leases) }

// SessionCount counts the sessions except the local one.
func (m *Machine) SessionCount() int { return len(m.sessions) - 1 }

var turnOf = regexp.MustCompile(`"Turn":\d+`)

// Portrait returns, as text, all state of m that a log determines: two machines with equal
// portraits are equal, except for calls that only read. Of turns only the order counts.
func (m *Machine) Portrait() string {
	s := m.state()
	s.Now, s.Turn = 0, 0
	var entries []Entry
	m.entries.ascend("", func(e *entry) bool {
		entries = append(entries, m.saved(e))
		return true
	})
	b, err := json.Marshal(struct {
		*State
		Entries []Entry
		Bytes   int64
	}{s, entries, m.bytes})
	if err != nil {
		panic(err)
	}
	number := func(turn []byte) int {
		n, err := strconv.Atoi(string(turn[len(`"Turn":`):]))
		if err != nil {
			panic(err)
		}
		return n
	}
	var turns []int
	for _, turn := range turnOf.FindAll(b, -1) {
		turns = append(turns, number(turn))
	}
	slices.Sort(turns)
	turns = slices.Compact(turns)
	return string(turnOf.ReplaceAllFunc(b, func(turn []byte) []byte {
		return fmt.Appendf(nil, `"Turn":%d`, slices.Index(turns, number(turn)))
	}))
}

// pop disarms and returns an entry that is due, or nil.
func (x *expiry) pop(now Time) *entry {
	s := x.due(now)
	if s != nil {
		x.disarm(s)
	}
	return s
}

// Account returns the memory of what m holds, in bytes: kept is m's running count, tally the sum
// over the objects that exist. It also reports whether the running counts of all sessions agree
// with such sums.
func (m *Machine) Account() (kept, tally int64, sessions bool) {
	t := m.recount()
	return m.account.total, t.total, maps.Equal(m.account.bySession, t.bySession)
}
