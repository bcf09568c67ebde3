package core

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/muster-pg/muster/wire"
)

// A log of events is the machine: replayed into a new one, or into one that was restored, they make the same state. Requests that
// change nothing are not in it; nor are the calls that wait for keys, changes or the end of a group: their callers ask again.

const (
	eventRequest byte = iota + 1
	eventTick
	eventAdvance
	eventRestart
	eventLimits
)

// Logs reports whether the last Apply, of a request for op, belongs into a log.
func (m *Machine) Logs(op wire.Op) bool { return m.executed && logged(op) }

func logged(op wire.Op) bool {
	switch op {
	case wire.OpGet, wire.OpList, wire.OpWait, wire.OpWatch, wire.OpPing, wire.OpFollow:
		return false
	}
	return true
}

// AppendApply appends the event of an Apply.
func AppendApply(b []byte, now Time, session uint64, req *wire.Request) []byte {
	b = appendEvent(b, eventRequest, now)
	b = binary.LittleEndian.AppendUint64(b, session)
	return wire.AppendRequest(b, req)
}

// AppendTick appends the event of a Tick that had something to do.
func AppendTick(b []byte, now Time) []byte { return appendEvent(b, eventTick, now) }

// AppendAdvance appends the event of an Advance that had something to do.
func AppendAdvance(b []byte, now Time) []byte { return appendEvent(b, eventAdvance, now) }

// AppendRestart appends the event of a Restart.
func AppendRestart(b []byte, now, grace Time) []byte {
	return binary.LittleEndian.AppendUint64(appendEvent(b, eventRestart, now), uint64(grace))
}

// AppendLimits appends the event of a SetLimits. Held and HeldOf are not in it: what they refuse is refused before it is logged.
func AppendLimits(b []byte, now Time, l Limits) []byte {
	b = appendEvent(b, eventLimits, now)
	for _, n := range [...]int64{int64(l.Key), int64(l.Value), l.Bytes, int64(l.Keys), int64(l.History), int64(l.Waiting), int64(l.Leases)} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func parseLimits(b []byte) Limits {
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	return Limits{
		Key: int(at(0)), Value: int(at(1)), Bytes: at(2), Keys: int(at(3)), History: int(at(4)), Waiting: int(at(5)), Leases: int(at(6)),
	}
}

// SetLimits changes the limits. What is beyond them already stays.
func (m *Machine) SetLimits(l Limits) { m.limits = l.withDefaults() }

func appendEvent(b []byte, kind byte, now Time) []byte {
	return binary.LittleEndian.AppendUint64(append(b, kind), uint64(now))
}

var errEvent = errors.New("core: this is no event")

// Replay lets an event happen again. Its answers are nobody's. The machine keeps nothing of event.
func (m *Machine) Replay(event []byte) error {
	if len(event) < 9 {
		return errEvent
	}
	kind, now, rest := event[0], Time(binary.LittleEndian.Uint64(event[1:])), event[9:]
	defer m.Effects()
	switch {
	case kind == eventTick:
		m.Tick(now)
	case kind == eventAdvance:
		m.Advance(now)
	case kind == eventLimits && len(rest) == 7*8:
		m.SetLimits(parseLimits(rest))
	case kind == eventRestart && len(rest) == 8:
		m.Restart(now, Time(binary.LittleEndian.Uint64(rest)))
	case kind == eventRequest && len(rest) > 8:
		return m.replayRequest(now, binary.LittleEndian.Uint64(rest), rest[8:])
	default:
		return errEvent
	}
	return nil
}

func (m *Machine) replayRequest(now Time, session uint64, frame []byte) error {
	h, err := wire.ParseHeader(frame, wire.MaxBody)
	if err != nil {
		return err
	}
	var req wire.Request
	if err := req.Parse(h, frame[wire.HeaderLen:]); err != nil {
		return err
	}
	if Keeps(req.Op) {
		req.Value = bytes.Clone(req.Value)
	}
	m.Apply(now, session, &req, new(wire.Reply))
	return nil
}

// Restart is the first event after a crash: the process that held the machine is gone, with its calls and its ranks, and the sessions of
// others have grace to be resumed. A session that has not been resumed since an earlier restart has what is left of that time: a store
// that restarts again and again does not keep the ranks of dead processes.
func (m *Machine) Restart(now, grace Time) {
	m.Advance(now)
	local := m.sessions[Local]
	m.dropAll(local, wire.CodeLost, func(*waiter) bool { return true })
	m.sessions[Local] = &session{waiters: map[uint64]*waiter{}}
	for _, l := range local.leases {
		m.endLease(l)
	}
	for _, seat := range local.memberships {
		m.fence(seat.g, wire.CodeLost, "", seat.rank)
	}
	m.counts = counts{} // what is replayed was lost to another process
	for _, id := range m.Sessions() {
		s := m.sessions[id]
		if !s.unresumed {
			s.unresumed = true
			m.arm(&s.reconnect, m.after(grace))
		}
	}
}
