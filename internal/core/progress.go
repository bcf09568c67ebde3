package core

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/wire"
)

// maxPhaseChanges is how many changes of its phase count as progress of a rank between two of its
// votes: more would let a thread in the background excuse a rank that hangs.
const maxPhaseChanges = 16

// minStall is the shortest stall of a record: ranks report once a second.
const minStall = time.Second

// progress is what a rank has reported of its progress. A report counts if Done has risen or the
// phase has changed; repeats excuse nobody.
//
// The phase is a part of the state: its changes are logged. How far the rank is in it, and when that
// was, are not: ranks report them every second. So that replicas stay equal, no decision of the
// machine depends on them. The one that drives the machine asks Stalled, and logs the decision as a
// request, as it does for a connection that has broken. After a restart, each rank has made progress
// just now.
type progress struct {
	phase   wire.Phase
	changes int  // of the phase, since the last vote of its rank
	at      Time // when it last made progress
}

// report takes the report of a rank.
func (m *Machine) report(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	f := &req.Phase
	g, s := m.memberOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	m.noop = true
	if f.Done < 0 || f.Total < 0 || f.Stall < 0 {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("progress of %d of %d, with a stall of %v", f.Done, f.Total, f.Stall))
	}
	first := s.progress == nil
	if first {
		s.progress = new(progress)
		m.account.charge(t.Session, progressCost)
	}
	p := s.progress
	same := p.phase
	same.Done = f.Done
	switch {
	case first || same != *f:
		m.noop = false
		p.phase = *f
		p.phase.Name = strings.Clone(f.Name)
		if p.changes < maxPhaseChanges {
			p.changes++
			p.at = m.now
		}
	case f.Done > p.phase.Done:
		p.phase.Done, p.at = f.Done, m.now
	}
	return true
}

// excuse makes the progress of all ranks that have reported one just now: after a restart nobody
// knows better.
func (m *Machine) excuse() {
	for _, g := range m.groups {
		for i := range g.members {
			if p := g.members[i].progress; p != nil {
				p.at = m.now
			}
		}
	}
}

// state returns what the state has of p.
func (p *progress) state() *wire.Phase {
	if p == nil {
		return nil
	}
	f := p.phase
	f.Done = 0
	return &f
}

func (p *progress) String() string {
	switch f := &p.phase; {
	case f.ID == 0:
		return "its last phase has ended"
	case f.Total > 0:
		return fmt.Sprintf("%s, %d of %d", f.Name, f.Done, f.Total)
	case f.Done > 0:
		return fmt.Sprintf("%s, %d", f.Name, f.Done)
	default:
		return f.Name
	}
}

// stallTimer is when to look whether a rank that a record lacks has stalled. It is armed while the
// record is open and has a stall, and at most once in that time.
type stallTimer struct {
	timer timer
	r     *record
}

func (w *stallTimer) timerState() *timer { return &w.timer }
func (w *stallTimer) due(*Machine)       {} // Stalled takes it

// watch makes Stalled look at r when its stall has passed.
func (m *Machine) watch(r *record) {
	if r.stall == nil {
		r.stall = &stallTimer{r: r}
	}
	m.stalls.arm(r.stall, after(r.began, r.patience()))
}

// patience returns the stall of r.
func (r *record) patience() Time { return max(r.call.Stall, minStall) }

// unwatch ends that.
func (m *Machine) unwatch(r *record) {
	if r.stall != nil {
		m.stalls.disarm(r.stall)
	}
}

// Stalled looks whether an operation has stalled at now: a rank that it lacks, and that has reported
// progress, has made none since the operation began, for the stall of the operation's votes or for
// that of its phase, whichever is longer. It returns the request that fails the operation, which the
// caller must Apply for the session, and log as any other. It changes nothing itself. Call it after
// Tick, until ok is false.
func (m *Machine) Stalled(now Time) (session uint64, req *wire.Request, ok bool) {
	for d := m.stalls.pop(now); d != nil; d = m.stalls.pop(now) {
		r := d.(*stallTimer).r
		v, next := m.stalledRanks(r, now)
		if v == nil {
			m.stalls.arm(d, next)
			continue
		}
		for i := range r.votes {
			if w := &r.votes[i]; w.waiting { // others have ended their wait: nobody asks for the outcome
				return w.waiter.Session, &wire.Request{Op: wire.OpStalled, ID: w.waiter.ID, Value: wire.AppendReply(nil, wire.OpCollect, 0, failureReply(v))}, true
			}
		}
	}
	return 0, nil, false
}

// stalledRanks returns the failure of r if ranks have stalled at now, and otherwise when to look again.
func (m *Machine) stalledRanks(r *record, now Time) (v *wire.Failure, next Time) {
	next = after(now, r.patience())
	stalled, moving := missing{}, 0
	look := func(rank int) {
		p := r.ch.g.members[rank].progress
		if p == nil {
			moving++
			return
		}
		if at := after(max(p.at, r.began), max(r.patience(), p.phase.Stall)); at > now {
			next = min(next, at)
			moving++
			return
		}
		stalled.add(rank)
	}
	for rank := range r.votes {
		if r.lacks(rank) {
			look(rank)
		}
	}
	if stalled.count+moving == 0 { // its root waits for readers
		for _, rank := range r.missing(-1).ranks {
			look(rank)
		}
	}
	if stalled.count == 0 {
		return nil, next
	}
	v = &wire.Failure{Code: wire.CodeStalled, By: -1, Waited: now - r.began, Missing: stalled.ranks}
	for _, rank := range stalled.ranks[:min(len(stalled.ranks), maxDoing)] {
		p := r.ch.g.members[rank].progress
		v.Doing = append(v.Doing, fmt.Sprintf("no progress for %v: %s", RoundTwoDigits(now-p.at), p))
	}
	if moving > 0 {
		v.Reason = fmt.Sprintf("%d more missing, not stalled", moving)
	}
	if stalled.count > len(stalled.ranks) {
		v.Reason = strings.TrimSuffix(fmt.Sprintf("%d ranks have stalled, of which the first %d are named: %s", stalled.count, len(stalled.ranks), v.Reason), ": ")
	}
	return v, 0
}

// stalled fails the operation in which a call waits, as Stalled has decided. Meanwhile nothing has
// changed: one lock covers both. Only a replay of a log by another version may find no such call.
func (m *Machine) stalled(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	var failed wire.Reply
	h, err := wire.ParseHeader(req.Value, wire.MaxBody)
	if err == nil {
		err = failed.Parse(h, req.Value[wire.HeaderLen:])
	}
	if err != nil || failed.Failure == nil {
		m.noop = true
		return refuse(rep, wire.CodeInvalid, "no failure")
	}
	w := m.sessions[t.Session].waiters[t.ID]
	if m.noop = w == nil; m.noop {
		return true
	}
	if r, ok := w.owner.(*record); ok && r.open() {
		m.decide(r, &failed)
	} else {
		m.noop = true
	}
	return true
}

// progressStatus returns the progress of a rank, for viewers.
func (v *viewer) progressStatus(x *member) *wire.ProgressStatus {
	if x.progress == nil {
		return nil
	}
	return &wire.ProgressStatus{Phase: x.progress.phase, Ago: v.ago(x.progress.at)}
}
