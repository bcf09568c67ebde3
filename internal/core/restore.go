package core

import (
	"fmt"
	"iter"

	"github.com/muster-pg/muster/wire"
)

// Restore makes a machine of a state and its entries. It returns an error if they do not fit
// together, as in a damaged checkpoint. It keeps what s refers to.
func Restore(l Limits, s *State, entries iter.Seq2[Entry, error]) (*Machine, error) {
	m := New(l)
	m.now, m.rev, m.generation, m.lastLease, m.lastSession = s.Now, s.Rev, s.Generation, s.LastLease, s.LastSession
	m.history.first = m.rev + 1 - uint64(len(s.History))
	for _, c := range s.History {
		m.history.add(c, len(s.History))
	}
	m.timers.turn = s.Turn
	for i := range s.Sessions {
		m.restoreSession(&s.Sessions[i])
	}
	if err := m.restoreEntries(entries); err != nil {
		return nil, err
	}
	if err := m.restoreLeases(s); err != nil {
		return nil, err
	}
	m.endedKeys = s.EndedKeys
	for i := range s.Groups {
		if err := m.restoreGroup(&s.Groups[i]); err != nil {
			return nil, err
		}
	}
	for _, gen := range s.Live {
		if g := m.groups[gen]; g != nil {
			m.live[g.key] = g
		}
	}
	for i := range s.Forming {
		r, err := m.restoreRendezvous(&s.Forming[i], nil)
		if err != nil {
			return nil, err
		}
		m.forming[r.key] = r
	}
	m.account = m.recount()
	return m, nil
}

func (m *Machine) restoreSession(s *SavedSession) {
	x := &session{name: s.Name, token: s.Token, waiters: map[uint64]*waiter{}, acked: s.Acked, answers: s.Answers, resent: s.Resent, sharedCause: s.SharedCause, unresumed: s.Unresumed}
	x.reconnect.id = s.ID
	for i := range x.answers {
		x.bytes += valueBytes(&x.answers[i])
	}
	m.timers.rearm(&x.reconnect, s.Reconnect)
	m.sessions[s.ID] = x
}

func (m *Machine) restoreEntries(entries iter.Seq2[Entry, error]) error {
	for own, err := range entries {
		if err != nil {
			return err
		}
		e := m.entries.insert(own.Key)
		e.setVal(own.Value)
		e.rev = own.Rev
		m.bytes += entrySize(own.Key, own.Value)
		if own.Expires > 0 {
			m.expiries.arm(e, own.Expires)
		}
	}
	return nil
}

func (m *Machine) restoreLeases(s *State) error {
	ended := map[uint64]bool{}
	for _, id := range s.EndedLeases {
		ended[id] = true
	}
	for _, x := range s.Leases {
		l := &lease{id: x.ID, session: x.Session, ttl: x.TTL, ended: ended[x.ID]}
		if l.ended {
			m.endedLeases = append(m.endedLeases, l)
		} else {
			owner := m.sessions[x.Session]
			if owner == nil {
				return fmt.Errorf("core: lease %d of session %d, which does not exist", x.ID, x.Session)
			}
			m.addLease(owner, l)
			m.timers.rearm(l, x.Due)
		}
		for _, key := range x.Keys {
			e := m.entries.get(key)
			if e == nil {
				return fmt.Errorf("core: lease %d has key %q, which does not exist", x.ID, key)
			}
			m.attach(e, l)
		}
	}
	return nil
}

// restoreCall makes w the waiting call of a state.
func (m *Machine) restoreCall(w *waiter, s *SavedCall, o owner) error {
	of := m.sessions[s.Session]
	if of == nil {
		return fmt.Errorf("core: call %d of session %d, which does not exist", s.ID, s.Session)
	}
	*w = waiter{Ticket: Ticket{s.Session, s.ID}, op: s.Op, owner: o, rank: s.Rank, since: s.Since, cost: waiterCost}
	of.waiters[s.ID] = w
	m.calls++
	m.timers.rearm(w, s.Due)
	return nil
}

func (m *Machine) restoreGroup(s *SavedGroup) error {
	g := &group{
		key: groupKey{s.Name, s.Run}, gen: s.Gen, members: make([]member, len(s.Members)), infos: make([][]byte, len(s.Members)), revoked: s.Revoked, began: s.Born,
		channels: map[string]*channel{}, tags: map[string]*streams{},
	}
	m.groups[g.gen] = g
	m.byGeneration.add(g)
	for i, x := range s.Members {
		g.members[i], g.infos[i] = member{x.Session, x.Join, x.Label, x.Gone, x.Verb, x.Seq, x.At, x.Expired, claim{x.Token, x.Try}, nil}, x.Info
		if x.Phase != nil {
			g.members[i].progress = &progress{phase: *x.Phase, done: x.Phase.Done, at: m.now}
		}
		if x.Gone != wire.CodeOK {
			continue
		}
		of := m.sessions[x.Session]
		if of == nil {
			return fmt.Errorf("core: rank %d of generation %d has session %d, which does not exist", i, g.gen, x.Session)
		}
		g.present++
		of.memberships = append(of.memberships, membership{g, i})
	}
	g.summarize()
	if g.revoked != nil && g.revoked.Failure != nil {
		g.revocation = m.newPastFailure("", "", 0, g.revoked.Failure)
	}
	for i := range s.Channels {
		if err := m.restoreChannel(g, &s.Channels[i]); err != nil {
			return err
		}
	}
	for i := range s.Streams {
		if err := m.restoreStream(g, &s.Streams[i]); err != nil {
			return err
		}
	}
	if s.Shrink == nil {
		return nil
	}
	var err error
	g.shrink, err = m.restoreRendezvous(s.Shrink, g)
	return err
}

func (m *Machine) restoreRendezvous(s *SavedRendezvous, from *group) (*rendezvous, error) {
	r := &rendezvous{key: groupKey{s.Name, s.Run}, size: s.Size, from: from, joiners: map[int]*joiner{}}
	for i := range s.Joiners {
		x := &s.Joiners[i]
		a := &joiner{rendezvous: r, label: x.Label, info: x.Info, claim: claim{x.Token, x.Try}}
		if err := m.restoreCall(&a.waiter, &x.Call, a); err != nil {
			return nil, err
		}
		a.cost = joinCost(a.label, a.info)
		r.joiners[a.rank] = a
	}
	return r, nil
}

func (m *Machine) restoreChannel(g *group, s *SavedChannel) error {
	if len(s.Floor) != len(g.members) || len(s.Used) != len(g.members) {
		return fmt.Errorf("core: channel %q has %d floors of %d users for %d ranks", s.Name, len(s.Floor), len(s.Used), len(g.members))
	}
	ch := &channel{g: g, name: s.Name, used: s.Used, floor: s.Floor, records: map[uint64]*record{}}
	g.append(ch)
	for i := range s.Records {
		if err := m.restoreRecord(ch, &s.Records[i]); err != nil {
			return err
		}
	}
	for _, seq := range s.Blocked {
		if r := ch.records[seq]; r != nil {
			ch.blocked = append(ch.blocked, r)
		}
	}
	return nil
}

func (m *Machine) restoreRecord(ch *channel, s *SavedRecord) error {
	n := len(ch.g.members)
	if len(s.Votes) != n || s.Call.Root >= n && s.Failed == nil { // an invalid root is why it failed
		return fmt.Errorf("core: record %d of channel %q does not fit its group of %d", s.Seq, ch.name, n)
	}
	r := &record{ch: ch, payer: Local, cost: newRecordCost(&s.Call, n), seq: s.Seq, call: s.Call, votes: make([]vote, n), skipped: s.Skipped, last: s.Last, began: s.Born, done: s.Done, failed: s.Failed}
	ch.records[r.seq] = r
	for rank := range s.Votes {
		x, b := &s.Votes[rank], &r.votes[rank]
		b.yes, b.want, b.payload = x.Yes, x.Want, x.Payload
		if ch.g.members[rank].gone == wire.CodeOK && ch.floor[rank] < r.seq {
			r.pending++
		}
		if b.yes {
			r.yes++
			r.bytes += len(b.payload)
		}
		if b.yes && b.want == wire.WantPart && b.payload != nil && (!r.call.RootOnly || rank == r.call.Root) {
			parts, err := wire.ParseParts(b.payload, n)
			if err != nil {
				return fmt.Errorf("core: record %d of channel %q: %w", s.Seq, ch.name, err)
			}
			r.keepParts(rank, parts)
		}
		if x.Call != nil {
			b.waiting = true
			if err := m.restoreCall(&b.waiter, x.Call, r); err != nil {
				return err
			}
		}
	}
	ch.bytes += r.bytes
	m.timers.rearm(r, s.Due)
	if r.open() && r.call.Stall > 0 {
		m.watch(r)
	}
	return nil
}

func (m *Machine) restoreStream(g *group, s *SavedStream) error {
	if n := len(g.members); s.Src < 0 || s.Src >= n || s.Dst < 0 || s.Dst >= n {
		return fmt.Errorf("core: a stream from %d to %d does not fit its group of %d", s.Src, s.Dst, n)
	}
	st := &stream{src: s.Src, dst: s.Dst, first: s.First, delivered: s.Delivered, source: s.Source, reading: s.Reading}
	g.addStream(st, s.Tag)
	for _, x := range s.Messages {
		st.queue = append(st.queue, message{x.Payload, x.Type, x.Expires, x.Expired})
		st.bytes += len(x.Payload)
	}
	for i := range s.Senders {
		w := &sender{stream: st, bytes: s.Senders[i].Bytes}
		if err := m.restoreCall(&w.waiter, &s.Senders[i].Call, w); err != nil {
			return err
		}
		st.senders = append(st.senders, w)
	}
	if s.Reader != nil {
		st.reader = &reader{stream: st, pos: s.Pos}
		if err := m.restoreCall(&st.reader.waiter, s.Reader, st.reader); err != nil {
			return err
		}
	}
	m.timers.rearm(st, s.Due)
	return nil
}
