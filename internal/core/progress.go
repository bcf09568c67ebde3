package core

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// maxPhaseChanges is how many changes of its phase count as progress of a rank from the beginning of
// one operation of its group to that of the next: more would let a thread in the background excuse a
// rank that hangs.
const maxPhaseChanges = 16

// maxPhasesAtOnce is how many phases of a rank may take turns in making progress.
const maxPhasesAtOnce = 4

// progress is what a rank has reported of its progress. A report counts if Done has risen or the
// phase has changed; repeats excuse nobody. A vote is progress too.
//
// The phase is a part of the state: its changes are logged. How far the rank is in it, and when that
// was, are not: ranks report them every second. So that replicas stay equal, no decision of the
// machine depends on them. The one that drives the machine asks Stalled, and logs the decision as a
// request, as it does for a connection that has broken. After a restart, each rank has made progress
// just now.
type progress struct {
	phase   wire.Phase                  // as it was when it began
	done    int64                       // now
	highest [maxPhasesAtOnce]wire.Phase // ID and Done alone, of the last phases: several may take turns
	changes int                         // of the phase, since the last operation of the group began
	at      Time                        // when it last made progress
}

// report takes the report of a rank.
func (m *Machine) report(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	f := &req.Phase
	g, s := m.memberOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	m.noop = true
	if f.Done < 0 || f.Total < 0 || f.Stall < 0 || f.Ago < 0 {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("progress of %d of %d, with a stall of %v, %v ago", f.Done, f.Total, f.Stall, f.Ago))
	}
	first := s.progress == nil
	if first {
		s.progress = new(progress)
		m.account.charge(t.Session, progressCost)
		m.watchFor(g, req.Group.Rank)
	}
	p := s.progress
	same := p.phase
	same.Done, same.Ago = f.Done, f.Ago
	counts := p.rises(f)
	if first || same != *f {
		m.noop = false
		p.phase, p.done = *f, f.Done
		p.phase.Name, p.phase.Ago = strings.Clone(f.Name), 0
		p.changes++
		counts = counts || p.changes <= maxPhaseChanges
	}
	if counts {
		p.done, p.at = f.Done, max(p.at, m.now-f.Ago)
	}
	return true
}

// rises reports whether Done of f is higher than before, in a phase that the rank has been in, and notes
// it.
func (p *progress) rises(f *wire.Phase) bool {
	if f.ID == 0 {
		return false
	}
	i := slices.IndexFunc(p.highest[:], func(x wire.Phase) bool { return x.ID == f.ID })
	if i < 0 {
		copy(p.highest[1:], p.highest[:])
		p.highest[0] = wire.Phase{ID: f.ID, Done: f.Done}
		return false
	}
	rises := f.Done > p.highest[i].Done
	p.highest[i].Done = max(p.highest[i].Done, f.Done)
	return rises
}

// excuse makes the progress of all ranks that have reported one just now: after a restart nobody
// knows better.
func (m *Machine) excuse() {
	for _, g := range m.groups {
		for i := range g.members {
			if p := g.members[i].progress; p != nil {
				p.at, p.changes = m.now, 0
				p.highest = [maxPhasesAtOnce]wire.Phase{{ID: p.phase.ID, Done: p.phase.Done}}
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
	return &f
}

func (p *progress) String() string {
	f := p.phase
	f.Done = p.done
	return f.String()
}

// stallTimer is when to look whether a rank that a record lacks has stalled: at the latest when the
// record's stall has passed since the last look, since a report may change when its rank is due. It is
// armed while the record is open and has a stall, a vote waits, and a rank that it lacks has reported.
type stallTimer struct {
	timer  timer
	r      *record
	looked Time // the last time; 0: not yet
}

// lookAgain is how many times in the shortest stall a record is looked at: a look is at all of its ranks.
const lookAgain = 20

func (w *stallTimer) timerState() *timer { return &w.timer }
func (w *stallTimer) due(*Machine)       {} // Stalled takes it

// watchFor arms the timers of the records that lack a rank which has reported for the first time.
func (m *Machine) watchFor(g *group, rank int) {
	for _, ch := range g.inOrder() {
		for _, r := range ch.records {
			if r.open() && r.call.Stall > 0 && r.lacks(rank) {
				m.watch(r)
			}
		}
	}
}

// watch makes Stalled look at r when its stall has passed since it began.
func (m *Machine) watch(r *record) {
	if r.stall == nil {
		r.stall = &stallTimer{r: r}
	}
	at := after(r.began, r.call.Stall)
	if r.stall.looked > 0 {
		at = max(at, r.stall.looked+m.bounds.stall/lookAgain)
	}
	m.stalls.arm(r.stall, at)
}

// unwatch ends that.
func (m *Machine) unwatch(r *record) {
	if r.stall != nil {
		m.stalls.disarm(r.stall)
	}
}

// patience returns the stall of r: the least one of its votes, or of a group whose ranks report as
// often as those of r.
func (m *Machine) patience(r *record) Time {
	return max(r.call.Stall, m.bounds.stall*(wire.ReportInterval(len(r.votes))/wire.ReportInterval(1)))
}

// Stalled looks whether an operation has stalled at now: a rank that it lacks, and that has reported
// progress, has made none since the operation began, for the stall of the operation's votes or for
// that of its phase, whichever is longer, and for the time that a report may take. A rank that waits
// in another operation, or whose connection has just broken, has not stalled. Stalled returns the
// request that fails the operation, which the caller must Apply for the session, and log as any other.
// It changes nothing itself. Call it after Tick, until ok is false.
func (m *Machine) Stalled(now Time) (session uint64, req *wire.Request, ok bool) {
	for d := m.stalls.pop(now); d != nil; d = m.stalls.pop(now) {
		r := d.(*stallTimer).r
		r.stall.looked = now
		i := slices.IndexFunc(r.votes, func(b vote) bool { return b.waiting })
		if i < 0 {
			continue // the next vote that waits arms the timer
		}
		v, next := m.stalledRanks(r, now)
		if v == nil && next > 0 {
			m.stalls.arm(d, next)
		}
		if v != nil {
			w := &r.votes[i].waiter
			return w.Session, &wire.Request{Op: wire.OpStalled, ID: w.ID, Value: wire.AppendReply(nil, wire.OpCollect, 0, failureReply(v))}, true
		}
	}
	return 0, nil, false
}

// stalledRanks returns the failure of r if ranks have stalled at now, and otherwise when to look again;
// 0: when a rank has reported.
func (m *Machine) stalledRanks(r *record, now Time) (v *wire.Failure, next Time) {
	g, stalled, others := r.ch.g, missing{}, 0
	look := func(rank int) {
		p := g.members[rank].progress
		if p == nil {
			others++
			return
		}
		if next == 0 {
			next = after(now, m.patience(r))
		}
		at := after(max(p.at, r.began), max(m.patience(r), p.phase.Stall)+m.bounds.late)
		switch {
		case at > now:
			next = min(next, at)
			others++
		case m.excused(g, rank):
			others++
		default:
			stalled.add(rank)
		}
	}
	for rank := range r.votes {
		if r.lacks(rank) {
			look(rank)
		}
	}
	if stalled.count+others == 0 { // its root waits for readers, of which the slowest change
		next = after(now, m.patience(r))
		for _, rank := range r.missing(-1).ranks {
			look(rank)
		}
	}
	if stalled.count == 0 {
		return nil, next
	}
	v = &wire.Failure{Code: wire.CodeStalled, By: -1, Waited: now - r.began, Missing: stalled.ranks}
	for _, rank := range stalled.ranks[:min(len(stalled.ranks), maxDoing)] {
		v.Doing = append(v.Doing, m.stalledText(g, rank, now))
	}
	if others > 0 {
		v.Reason = fmt.Sprintf("%d more missing, not stalled", others)
	}
	if stalled.count > len(stalled.ranks) {
		v.Reason = strings.TrimSuffix(fmt.Sprintf("%d ranks have stalled, of which the first %d are named: %s", stalled.count, len(stalled.ranks), v.Reason), ": ")
	}
	return v, 0
}

// excused reports whether a rank waits in an operation of a group, or its session may be resumed.
func (m *Machine) excused(g *group, rank int) bool {
	x := &g.members[rank]
	s := m.sessions[x.session]
	for _, w := range s.waiters {
		r, ok := w.owner.(*record)
		if ok && (r.ch.g == g && w.rank == rank || r.ch.g != g && x.session != Local && r.ch.g.members[w.rank].label == x.label) {
			return true
		}
	}
	return s.reconnect.timer.pos > 0
}

// stalledText describes the progress of a rank that has stalled, and what it does.
func (m *Machine) stalledText(g *group, rank int, now Time) string {
	p := g.members[rank].progress
	text := fmt.Sprintf("no progress for %v: %s", RoundTwoDigits(now-p.at), p)
	if p.changes > maxPhaseChanges {
		text += fmt.Sprintf("; its phase has changed more than %d times, which no longer counts: let one phase have a total", maxPhaseChanges)
	}
	if what, _ := m.waitOf(g, rank); what != "" { // for a message
		text += "; " + what
	}
	return text
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
	if w := m.sessions[t.Session].waiters[t.ID]; w != nil {
		if r, ok := w.owner.(*record); ok {
			m.decide(r, &failed)
			return true
		}
	}
	m.noop = true
	return true
}

// progressStatus returns the progress of a rank, for viewers.
func (v *viewer) progressStatus(x *member) *wire.Phase {
	p := x.progress
	if p == nil {
		return nil
	}
	f := p.phase
	f.Done, f.Ago = p.done, v.ago(p.at)
	return &f
}
