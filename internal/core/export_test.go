package core

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// Bounds is what groups may pile up, made small for simulations. Zero fields stay as they are.
type Bounds struct{ Window, AheadRecords, AheadBytes, StreamMessages, StreamBytes, Unacked, ExpireAtOnce int }

// SetBounds changes the bounds of a Machine that holds nothing yet, and returns all of them.
func (m *Machine) SetBounds(b Bounds) Bounds {
	set := func(to *int, n int) int {
		if n > 0 {
			*to = n
		}
		return *to
	}
	return Bounds{
		set(&m.bounds.window, b.Window), set(&m.bounds.aheadRecords, b.AheadRecords), set(&m.bounds.aheadBytes, b.AheadBytes),
		set(&m.bounds.streamMessages, b.StreamMessages), set(&m.bounds.streamBytes, b.StreamBytes),
		set(&m.bounds.unacked, b.Unacked), set(&m.bounds.expireAtOnce, b.ExpireAtOnce),
	}
}

// Holdings counts what a Machine holds.
type Holdings struct {
	Sessions, Waiters, Seats         int // Sessions without Local
	Groups, Live, Rolls, Shrinks     int
	Channels, Records, Streams       int
	Messages, Follows                int
	Waits, Watchers, Timers, Effects int
	Answers, Leases, Held, Ending    int // answers that are kept; leases that have entries; those that have ended
	Calls, Ordered                   int // waiters as they are counted, and groups as they are listed
}

// Holdings is all that m holds but keys.
func (m *Machine) Holdings() Holdings {
	h := Holdings{
		Sessions: len(m.sessions) - 1, Groups: len(m.groups), Live: len(m.live), Rolls: len(m.rolls),
		Calls: m.calls, Ordered: len(m.order.list) - m.order.holes,
		Watchers: len(m.watchers), Timers: len(m.timers.heap), Effects: len(m.effects), Leases: len(m.leases), Held: len(m.held) - len(m.unheld), Ending: len(m.ending),
	}
	for _, s := range m.sessions {
		h.Waiters += len(s.waiters)
		h.Seats += len(s.seats)
		h.Answers += len(s.answers)
	}
	for _, list := range m.waits {
		h.Waits += len(list)
	}
	for _, g := range m.groups {
		h.Follows += len(g.follows)
		h.Channels += len(g.channels)
		h.Streams += len(g.streams)
		if g.shrink != nil {
			h.Shrinks++
		}
		for _, ch := range g.channels {
			h.Records += len(ch.records)
		}
		for _, st := range g.streams {
			h.Messages += len(st.queue)
		}
	}
	return h
}

// Records counts the records of a channel.
func (m *Machine) Records(generation uint64, channel string) int {
	if g := m.groups[generation]; g != nil && g.channels[channel] != nil {
		return len(g.channels[channel].records)
	}
	return 0
}

// RecordState is what there is to see of a record from outside.
type RecordState struct {
	Done, Failed       bool
	Yes, Pending, Size int
}

// Record looks at one record.
func (m *Machine) Record(generation uint64, channel string, seq uint64) (s RecordState, there bool) {
	g := m.groups[generation]
	if g == nil || g.channels[channel] == nil {
		return s, false
	}
	r := g.channels[channel].records[seq]
	if r == nil {
		return s, false
	}
	return RecordState{Done: r.done, Failed: r.failed != nil, Yes: r.yes, Pending: r.pending, Size: r.bytes}, true
}

// Groups counts the generations that m holds.
func (m *Machine) Groups() int { return len(m.groups) }

// Queue counts the messages of a stream.
func (m *Machine) Queue(generation uint64, src, dst int, tag string) int {
	if g := m.groups[generation]; g != nil && g.streams[streamKey{src, dst, tag}] != nil {
		return len(g.streams[streamKey{src, dst, tag}].queue)
	}
	return 0
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

// SessionCount counts the sessions but the local one.
func (m *Machine) SessionCount() int { return len(m.sessions) - 1 }

var turnOf = regexp.MustCompile(`"Turn":\d+`)

// Portrait is all that a log makes of m, in words: two machines with the same one are the same, but for calls that only read, and
// the history of changes. Of turns only the order counts.
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
