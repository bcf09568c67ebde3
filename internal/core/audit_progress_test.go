package core_test

import (
	"slices"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// progress is what the auditor knows of the reports of a rank.
type progress struct {
	phase   wire.Phase
	last    []wire.Phase // the last four, with the highest Done of each
	changes int          // since the last operation began
	at      core.Time    // of its last progress
}

// reports handles the report of a rank.
func (a *audit) reports(cl *call) {
	g := a.memberOf(cl)
	if g == nil {
		return
	}
	f := cl.req.Phase
	x := &g.members[cl.req.Group.Rank]
	first := x.progress == nil
	if first {
		x.progress = new(progress)
	}
	p := x.progress
	began := p.phase
	began.Done, began.Ago = f.Done, f.Ago
	counts := p.rises(f)
	if first || began != f {
		p.phase = f
		if p.changes++; p.changes <= 16 {
			counts = true
		} else if !counts {
			a.w.tally["phases that do not count"]++
		}
	} else if !counts {
		a.w.tally["reports that repeat"]++
	}
	if counts {
		p.at = max(p.at, a.now-f.Ago)
	}
}

// rises reports whether f is further than before, in one of the last four phases.
func (p *progress) rises(f wire.Phase) bool {
	if f.ID == 0 {
		return false
	}
	for i := range p.last {
		if x := &p.last[i]; x.ID == f.ID {
			rises := f.Done > x.Done
			x.Done = max(x.Done, f.Done)
			return rises
		}
	}
	if p.last = append(p.last, f); len(p.last) > 4 {
		p.last = p.last[1:]
	}
	return false
}

// excuses handles a restart of the server: all have made progress just now.
func (a *audit) excuses() {
	for _, g := range a.inOrder {
		for i := range g.members {
			if p := g.members[i].progress; p != nil {
				p.at, p.changes = a.now, 0
				p.last = []wire.Phase{p.phase}
			}
		}
	}
}

// hasStalled reports whether at now rank has made no progress for the stall of r, since a time.
func (r *record) hasStalled(a *audit, rank int, since, now core.Time) bool {
	p := r.ch.g.members[rank].progress
	if p == nil || r.stall == 0 {
		return false
	}
	return max(p.at, r.began, since)+max(r.stall, p.phase.Stall, a.w.bounds.Stall)+a.w.bounds.Late <= now
}

// excuse notes which sessions have a call that waits in an operation, or no connection: their ranks
// have not stalled.
func (a *audit) excuse() {
	for _, cl := range a.waiting {
		if cl.record != nil {
			a.lastExcused[cl.session] = a.now
		}
	}
	for id, s := range a.sessions {
		if s.grace != (timer{}) {
			a.lastExcused[id] = a.now
		}
	}
}

// excused reports whether that is so for a rank now.
func (a *audit) excused(g *group, rank int) bool {
	session := g.members[rank].session
	return a.sessions[session] != nil && a.sessions[session].grace != (timer{}) || slices.ContainsFunc(a.waiting, func(cl *call) bool {
		return cl.session == session && cl.record != nil && (cl.record.ch.g == g && cl.req.Group.Rank == rank || cl.record.ch.g != g && session != core.Local)
	})
}

// stalls handles the server's decision that a record has stalled, and checks T1: it names the ranks that
// have stalled, and no others. In a replay the auditor does not know of all reports, and believes it.
func (a *audit) stalls(cl *call) {
	const p = "T1 who reports progress has not stalled"
	i := a.find(cl.session, cl.req.ID)
	if i < 0 || a.waiting[i].record == nil {
		breaks(p, "%s: no vote waits", cl)
	}
	r := a.waiting[i].record
	r.stalled = true
	var rep wire.Reply
	h, err := wire.ParseHeader(cl.req.Value, wire.MaxBody)
	if err == nil {
		err = rep.Parse(h, cl.req.Value[wire.HeaderLen:])
	}
	if err != nil || rep.Code != wire.CodeStalled || rep.Failure == nil {
		breaks(p, "%s: %v", cl, err)
	}
	if a.w.replaying {
		return
	}
	held := r.allYes()
	for rank := range r.yes {
		lacks := r.requires(rank) && r.yes[rank] == nil || held
		named := slices.Contains(rep.Failure.Missing, rank)
		stalled := r.hasStalled(a, rank, 0, a.now) && !a.excused(r.ch.g, rank)
		if named && (!lacks || !stalled) || !named && !held && lacks && stalled {
			breaks(p, "%s: rank %d is named: %v", cl, rank, named)
		}
	}
}

// t2StallsEnd checks T2, after the server has looked: an operation ends when a rank that it lacks has
// stalled since it was last excused, if a vote waits for it. The server may look a little later.
func t2StallsEnd(a *audit) {
	a.excuse()
	for _, cl := range a.waiting {
		r := cl.record
		if r == nil || r.done {
			continue
		}
		for rank := range r.yes {
			excused := a.lastExcused[r.ch.g.members[rank].session]
			p, late := r.ch.g.members[rank].progress, a.w.bounds.Stall/20
			if p != nil && p.changes > 16 { // one that does not count may have had a shorter stall
				late = max(r.stall, a.w.bounds.Stall)
			}
			if r.requires(rank) && r.yes[rank] == nil && r.hasStalled(a, rank, excused, a.now-late) {
				breaks("T2 a stall ends an operation", "%s waits for rank %d, which made progress at %v; it is %v", cl, rank, p.at, a.now)
			}
		}
	}
}
