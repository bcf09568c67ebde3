package core

import (
	"encoding/binary"
	"errors"

	"github.com/muster-pg/muster/wire"
)

// The log of a durable store is a sequence of events. Replayed into a new machine, or into one that
// was restored from a checkpoint, they make the same state. Requests that change nothing are not
// logged, and neither are calls that wait for keys, for changes or for the revocation of a group:
// their callers repeat them after a restart.
//
// An event is: kind u8 | time i64 | fields, little-endian.

const (
	eventRequest byte = iota + 1
	eventTick
	eventAdvance
	eventRestart
	eventLimits
)

// Logs reports whether the last Apply, whose request was for op, must be logged.
func (m *Machine) Logs(op wire.Op) bool { return m.executed && logged(op) }

func logged(op wire.Op) bool { return !op.ReadOnly() }

// AppendApply appends the event of a call of Apply.
func AppendApply(b []byte, now Time, session uint64, req *wire.Request) []byte {
	b = appendEvent(b, eventRequest, now)
	b = binary.LittleEndian.AppendUint64(b, session)
	return wire.AppendRequest(b, req)
}

// AppendTick appends the event of a call of Tick that had something to do.
func AppendTick(b []byte, now Time) []byte { return appendEvent(b, eventTick, now) }

// AppendAdvance appends the event of a call of Advance that had something to do.
func AppendAdvance(b []byte, now Time) []byte { return appendEvent(b, eventAdvance, now) }

// AppendRestart appends the event of a call of Restart.
func AppendRestart(b []byte, now, grace Time) []byte {
	return binary.LittleEndian.AppendUint64(appendEvent(b, eventRestart, now), uint64(grace))
}

// AppendLimits appends the event of a call of SetLimits. It omits Held and HeldOf: requests that
// exceed them are refused before they are logged.
func AppendLimits(b []byte, now Time, l Limits) []byte {
	l = l.withDefaults() // a later version may have others
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

// SetLimits changes the limits. What exceeds them already is kept.
func (m *Machine) SetLimits(l Limits) { m.limits = l.withDefaults() }

func appendEvent(b []byte, kind byte, now Time) []byte {
	return binary.LittleEndian.AppendUint64(append(b, kind), uint64(now))
}

var errEvent = errors.New("core: malformed log event")

// Replay carries out an event of the log. Its answers are dropped. The machine keeps no part of
// event.
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
	if req.Op.KeepsValue() {
		req.Value = CopyValue(req.Value)
	}
	m.Apply(now, session, &req, new(wire.Reply))
	return nil
}

// Restart is the first event after the process that held the machine has ended, with its own calls
// and ranks. The sessions of clients have grace to be resumed. A session that has not been resumed
// since an earlier restart keeps its old deadline: otherwise a store that restarts again and again
// would keep the ranks of dead processes.
func (m *Machine) Restart(now, grace Time) {
	m.Advance(now)
	local := m.sessions[Local]
	m.dropAll(local, wire.CodeLost, func(*waiter) bool { return true })
	m.sessions[Local] = &session{waiters: map[uint64]*waiter{}}
	m.endLeases(local)
	for _, member := range local.memberships {
		m.fence(member.g, wire.CodeLost, "", member.rank)
	}
	m.excuse()
	m.counts = counts{} // the sessions that failed in the replay were counted by another process
	for _, id := range m.Sessions() {
		s := m.sessions[id]
		if !s.unresumed {
			s.unresumed = true
			m.arm(&s.reconnect, m.after(grace))
		}
	}
}
