package core

import (
	"cmp"
	"maps"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// State is all state of a machine except its entries, for a checkpoint. It does not have what the
// log does not have either: calls that wait for keys, for changes or for the revocation of a group.
// Its values and replies are shared with the machine and must not be modified. Field names are the
// format of checkpoints.
type State struct {
	Now         Time
	Rev         uint64
	Generation  uint64
	LastLease   uint64
	LastSession uint64 // id of the last session
	Turn        uint64 // of the last timer
	Limits      Limits
	Sessions    []SavedSession
	Leases      []SavedLease
	EndedLeases []uint64 // ids of leases that still have entries, in the order of Machine.endedLeases
	EndedKeys   []string // Machine.endedKeys
	Groups      []SavedGroup
	Forming     []SavedRendezvous
	Live        []uint64 // generations
	// History is the last changes in order. The last one made revision Rev. A watch that is resumed
	// continues from it.
	History []Change
}

// TimerState is a place in the timers; zero is not armed.
type TimerState struct {
	At   Time
	Turn uint64
}

// SavedSession is a session. Its memberships, leases and waiting calls are saved with their owners.
type SavedSession struct {
	ID          uint64
	Name        string
	Token       []byte
	Reconnect   TimerState // when it fails; zero: it has a connection
	Acked       uint64
	Answers     []wire.Reply
	Resent      map[uint64]bool // see session.resent
	SharedCause string          // see session.sharedCause
	Unresumed   bool            // see session.unresumed
}

// SavedLease is a lease, and the keys of its entries in order.
type SavedLease struct {
	ID, Session uint64
	TTL         Time
	Due         TimerState
	Keys        []string
}

// SavedGroup is a generation of a group.
type SavedGroup struct {
	Name, Run string
	Gen       uint64
	Members   []SavedMember
	Revoked   *wire.Reply
	Channels  []SavedChannel // those of one name in the order in which they began; Streams too
	Streams   []SavedStream
	Shrink    *SavedRendezvous
	Born      Time
}

// SavedMember is a member.
type SavedMember struct {
	Session, Join uint64
	Label         string
	Info          []byte
	Gone          wire.Code
	Verb          string
	Seq           uint64
	At            Time
	Expired       int
	Token         []byte // with Try: see claim
	Try           uint64
	Phase         *wire.Phase // as it began; nil: it has reported none
}

// SavedCall is a waiting call.
type SavedCall struct {
	Session, ID uint64
	Op          wire.Op
	Rank        int
	Since       Time
	Due         TimerState // its deadline
}

// SavedRendezvous is a rendezvous.
type SavedRendezvous struct {
	Name, Run string
	Size      int
	Joiners   []SavedJoiner
}

// SavedJoiner is a rank in a rendezvous.
type SavedJoiner struct {
	Call  SavedCall
	Label string
	Info  []byte
	Token []byte // with Try: see claim
	Try   uint64
}

// SavedChannel is a channel.
type SavedChannel struct {
	Name    string
	Used    []bool
	Floor   []uint64
	Records []SavedRecord
	Blocked []uint64
}

// SavedRecord is a record.
type SavedRecord struct {
	Seq     uint64
	Call    wire.Contribution
	Votes   []SavedVote
	Skipped []int
	Last    int32
	Born    Time
	Due     TimerState
	Done    bool
	Failed  *wire.Reply
}

// SavedVote is the vote of a rank.
type SavedVote struct {
	Yes     bool
	Want    int32
	Payload []byte
	Call    *SavedCall // if it waits
}

// SavedStream is a stream.
type SavedStream struct {
	Src, Dst         int
	Tag              string
	Source           StreamUse
	Reading          StreamUse
	First, Delivered uint64
	Messages         []SavedMessage
	Senders          []SavedSender
	Reader           *SavedCall
	Pos              uint64     // that the reader waits for
	Due              TimerState // when its first message expires
}

// SavedMessage is a message.
type SavedMessage struct {
	Payload []byte
	Type    string
	Expires Time
	Expired bool
}

// SavedSender is a call that waits for space.
type SavedSender struct {
	Call  SavedCall
	Bytes int
}

// state returns the state now.
func (m *Machine) state() *State {
	s := &State{Now: m.now, Rev: m.rev, Generation: m.generation, LastLease: m.lastLease, LastSession: m.lastSession, Turn: m.timers.turn, Limits: m.limits}
	for _, id := range append([]uint64{Local}, m.Sessions()...) {
		x := m.sessions[id]
		s.Sessions = append(s.Sessions, SavedSession{id, x.name, x.token, x.reconnect.timer.state(), x.acked, slices.Clone(x.answers), maps.Clone(x.resent), x.sharedCause, x.unresumed})
		for p := x.leases.Front(); p != nil; p = p.Next() {
			s.Leases = append(s.Leases, m.leaseState(p.Value.(*lease)))
		}
	}
	for _, l := range m.endedLeases {
		s.EndedLeases = append(s.EndedLeases, l.id)
		s.Leases = append(s.Leases, m.leaseState(l))
	}
	s.EndedKeys = slices.Clone(m.endedKeys)
	for _, gen := range slices.Sorted(maps.Keys(m.groups)) {
		s.Groups = append(s.Groups, m.groups[gen].state())
	}
	for _, g := range m.live {
		s.Live = append(s.Live, g.gen)
	}
	slices.Sort(s.Live)
	for _, r := range m.forming {
		s.Forming = append(s.Forming, *r.state())
	}
	s.History = slices.Clone(m.history.last())
	slices.SortFunc(s.Forming, func(a, b SavedRendezvous) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Run, b.Run)) })
	return s
}

func (c *timer) state() TimerState {
	if c.pos == 0 {
		return TimerState{}
	}
	return TimerState{c.at, c.turn}
}

func (m *Machine) leaseState(l *lease) SavedLease {
	s := SavedLease{ID: l.id, Session: l.session, TTL: l.ttl, Due: l.timer.state()}
	l.entries.each(&m.entries.slab, func(e *entry) { s.Keys = append(s.Keys, e.key()) })
	return s
}

func (w *waiter) saved() SavedCall {
	return SavedCall{w.Session, w.ID, w.op, w.rank, w.since, w.timer.state()}
}

func (g *group) state() SavedGroup {
	s := SavedGroup{Name: g.key.name, Run: g.key.run, Gen: g.gen, Revoked: g.revoked, Born: g.began}
	for i := range g.members {
		x := &g.members[i]
		s.Members = append(s.Members, SavedMember{x.session, x.join, x.label, g.infos[i], x.gone, x.verb, x.seq, x.at, x.expired, x.claim.token, x.claim.try, x.progress.state()})
	}
	for _, ch := range g.inOrder() {
		s.Channels = append(s.Channels, ch.state())
	}
	for _, st := range g.streamsInOrder() {
		s.Streams = append(s.Streams, st.state())
	}
	if g.shrink != nil {
		s.Shrink = g.shrink.state()
	}
	return s
}

func (r *rendezvous) state() *SavedRendezvous {
	s := &SavedRendezvous{Name: r.key.name, Run: r.key.run, Size: r.size}
	for _, a := range r.inOrder() {
		s.Joiners = append(s.Joiners, SavedJoiner{a.saved(), a.label, a.info, a.claim.token, a.claim.try})
	}
	return s
}

func (ch *channel) state() SavedChannel {
	s := SavedChannel{Name: ch.name, Used: slices.Clone(ch.used), Floor: slices.Clone(ch.floor)}
	for _, r := range ch.blocked {
		s.Blocked = append(s.Blocked, r.seq)
	}
	for _, seq := range slices.Sorted(maps.Keys(ch.records)) {
		r := ch.records[seq]
		x := SavedRecord{
			Seq: seq, Call: r.call, Skipped: slices.Clone(r.skipped), Last: r.last, Born: r.began, Due: r.timer.state(), Done: r.done, Failed: r.failed,
		}
		for rank := range r.votes {
			b := &r.votes[rank]
			own := SavedVote{Yes: b.yes, Want: b.want, Payload: b.payload}
			if b.waiting {
				call := b.waiter.saved()
				own.Call = &call
			}
			x.Votes = append(x.Votes, own)
		}
		s.Records = append(s.Records, x)
	}
	return s
}

func (st *stream) state() SavedStream {
	s := SavedStream{Src: st.src, Dst: st.dst, Tag: st.of.tag, Source: st.source, Reading: st.reading, First: st.first, Delivered: st.delivered, Due: st.timer.state()}
	for _, msg := range st.queue {
		s.Messages = append(s.Messages, SavedMessage{msg.payload, msg.typ, msg.expires, msg.expired})
	}
	for _, w := range st.senders {
		s.Senders = append(s.Senders, SavedSender{w.saved(), w.bytes})
	}
	if st.reader != nil {
		call := st.reader.saved()
		s.Reader, s.Pos = &call, st.reader.pos
	}
	return s
}
