package core

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// Bounds of one page of a status: other requests wait for the lock while it is made. A rank is a
// row, and so is a group that is skipped.
const (
	statusRows    = 1024
	statusForming = 256     // groups that form
	statusScans   = 4096    // records of a group, keys or rendezvous that are looked at
	statusCalls   = 1 << 14 // calls of a session that are looked at
)

// Page is a part of a status. If there is more, the next page begins with rank Rank of generation
// Generation, or with the one behind it.
type Page struct {
	wire.Status
	More       bool
	Generation uint64
	Rank       int
}

// Status returns a page of the groups whose names begin with prefix, and of the keys below it that
// calls wait for, from a rank of a generation on. It modifies nothing, and is not logged. A page is
// consistent; the next one may show a later moment.
func (m *Machine) Status(now Time, prefix string, generation uint64, rank int) *Page {
	v := &viewer{m: m, now: max(m.now, now), prefix: prefix, rowsLeft: statusRows}
	if generation == 0 {
		v.server()
		v.forming()
	}
	i := sort.Search(len(m.byGeneration.list), func(i int) bool { return m.byGeneration.list[i].gen >= generation })
	for ; i < len(m.byGeneration.list); i++ {
		at := m.byGeneration.list[i]
		if at.gen != generation {
			rank = 0
		}
		if v.rowsLeft <= 0 {
			v.More, v.Generation, v.Rank = true, at.gen, rank
			return &v.Page
		}
		v.rowsLeft--
		if at.g == nil || !strings.HasPrefix(at.g.key.name, prefix) {
			continue
		}
		if next := v.group(at.g, rank); next > 0 {
			v.More, v.Generation, v.Rank = true, at.gen, next
			return &v.Page
		}
	}
	v.endedGroups()
	v.keys()
	return &v.Page
}

// Member returns a rank that is present: the name of its group, its label and its session.
func (m *Machine) Member(generation uint64, rank int) (group, label string, session uint64, ok bool) {
	g := m.groups[generation]
	if g == nil || rank < 0 || rank >= len(g.members) || g.members[rank].gone != wire.CodeOK {
		return "", "", 0, false
	}
	return g.key.name, g.members[rank].label, g.members[rank].session, true
}

// viewer makes one page.
type viewer struct {
	Page
	m        *Machine
	now      Time
	prefix   string
	rowsLeft int // until the page is full
}

func (v *viewer) ago(at Time) Time { return max(v.now-at, 0) }

func (v *viewer) server() {
	if v.prefix != "" {
		return
	}
	s := &wire.ServerStatus{
		Up: v.now, Sessions: int64(len(v.m.sessions) - 1), Calls: int64(v.m.calls), Groups: int64(len(v.m.groups)),
		Keys: int64(v.m.entries.len()), Bytes: v.m.bytes, LostSessions: v.m.counts.lost,
		Watches: int64(v.m.watchers.n), History: int64(len(v.m.history.last())), Compacted: v.m.counts.compacted,
	}
	v.Server = s
}

// forming adds groups that form.
func (v *viewer) forming() {
	var found []*rendezvous
	looks := statusScans
	for key, r := range v.m.forming {
		if looks--; looks < 0 {
			break
		}
		if strings.HasPrefix(key.name, v.prefix) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, func(a, b *rendezvous) int {
		return cmp.Or(cmp.Compare(a.key.name, b.key.name), cmp.Compare(a.key.run, b.key.run))
	})
	for _, r := range found[:min(len(found), statusForming)] {
		v.rendezvous(r)
	}
}

func (v *viewer) rendezvous(r *rendezvous) {
	g := wire.GroupStatus{Name: r.key.name, Run: r.key.run, Size: r.size, Present: len(r.joiners), Ended: -1, Open: 1}
	rec := v.formingRecord(r, "create")
	g.Age = rec.Age
	for _, rank := range rec.Arrived.First(min(wire.StatusSpans, max(v.rowsLeft, 0))) {
		a := r.joiners[rank]
		g.Ranks = append(g.Ranks, wire.RankStatus{Rank: rank, Label: a.label, Session: a.Session, Verb: "create", Ago: v.ago(a.since), LastSeen: -1})
	}
	v.rowsLeft -= 1 + len(g.Ranks) + len(r.joiners)/64
	g.Records = []wire.RecordStatus{rec}
	v.Groups = append(v.Groups, g)
}

// formingRecord returns a rendezvous as a record of verb.
func (v *viewer) formingRecord(r *rendezvous, verb string) wire.RecordStatus {
	rec := wire.RecordStatus{Verb: verb, Root: -1}
	next := 0
	for _, a := range r.inOrder() {
		rec.Age = max(rec.Age, v.ago(a.since))
		if left := a.timer.at - v.now; a.timer.pos > 0 && (rec.Remaining == 0 || left < rec.Remaining) {
			rec.Remaining = max(left, 1)
		}
		v.addMissing(&rec.Missing, r, next, a.rank)
		rec.Arrived.Add(a.rank)
		next = a.rank + 1
	}
	v.addMissing(&rec.Missing, r, next, r.size)
	return rec
}

// addMissing adds the ranks from first to below end, which have not joined r.
func (v *viewer) addMissing(missing *wire.Ranks, r *rendezvous, first, end int) {
	if r.from == nil { // they may be many, and nothing is known about them
		missing.AddSpan(first, end-1)
		return
	}
	for rank := first; rank < end; rank++ {
		if r.from.members[rank].gone == wire.CodeOK {
			missing.Add(rank)
		}
	}
}

// group adds a generation from a rank on. It returns the rank of the next page if this page is full
// before the last rank, and 0 otherwise.
func (v *viewer) group(g *group, from int) (next int) {
	from = max(0, min(from, len(g.members))) // a client may ask for any rank
	s := wire.GroupStatus{}
	if from == 0 {
		s = wire.GroupStatus{Name: g.key.name, Run: g.key.run, Generation: g.gen, Size: len(g.members), Present: g.present, Age: v.ago(g.began), Ended: -1}
		if g.revoked != nil {
			s.Revoked = v.failureStatus(&g.revocation)
		}
		v.records(g, &s)
		s.Failures = v.failureStatuses(g.failures)
		v.rowsLeft -= len(s.Failures)
	}
	end := min(len(g.members), from+max(v.rowsLeft, 1))
	v.rowsLeft -= end - from
	waits := v.waits(g, from, end)
	s.Ranks = make([]wire.RankStatus, 0, end-from)
	for rank := from; rank < end; rank++ {
		x := &g.members[rank]
		s.Ranks = append(s.Ranks, wire.RankStatus{
			Rank: rank, Label: x.label, Session: x.session, Gone: x.gone, Verb: x.verb, Seq: x.seq, Ago: v.ago(x.at), LastSeen: -1, Waits: waits[rank],
			Progress: v.progressStatus(x),
		})
	}
	v.Groups = append(v.Groups, s)
	if end < len(g.members) {
		return end
	}
	return 0
}

// records adds the oldest open records of g.
func (v *viewer) records(g *group, s *wire.GroupStatus) {
	var open []*record
	looks := statusScans
	for _, ch := range g.inOrder() {
		for _, r := range ch.records {
			if looks--; r.open() && looks >= 0 {
				open = append(open, r)
			}
		}
	}
	slices.SortFunc(open, func(a, b *record) int {
		return cmp.Or(cmp.Compare(a.began, b.began), cmp.Compare(a.ch.name, b.ch.name), cmp.Compare(a.seq, b.seq))
	})
	s.Open = len(open)
	for _, r := range open[:min(len(open), wire.StatusRecords)] {
		s.Records = append(s.Records, v.record(r))
	}
	if g.shrink != nil {
		s.Open++
		s.Records = append(s.Records, v.formingRecord(g.shrink, "shrink"))
	}
	v.rowsLeft -= len(s.Records) * (1 + len(g.members)/64)
}

func (v *viewer) record(r *record) wire.RecordStatus {
	s := wire.RecordStatus{Channel: r.ch.name, Seq: r.seq, Verb: r.call.Verb, Root: r.call.Root, Age: v.ago(r.began)}
	if r.timer.pos > 0 {
		s.Remaining = max(r.timer.at-v.now, 1)
	}
	for rank := range r.votes {
		if r.votes[rank].yes {
			s.Arrived.Add(rank)
		} else if r.requires(rank) {
			s.Missing.Add(rank)
		}
	}
	if s.Missing.Count == 0 { // its root waits for readers
		for _, rank := range r.missing(-1).ranks {
			s.Missing.Add(rank)
		}
	}
	return s
}

// waits returns the waiting sends and receives of the ranks from from to below end of g. It scans a
// session once, however many of these ranks it has.
func (v *viewer) waits(g *group, from, end int) map[int][]wire.WaitStatus {
	if g.streamCount == 0 {
		return nil
	}
	waits := map[int][]wire.WaitStatus{}
	seen := map[uint64]bool{}
	for rank := from; rank < end; rank++ {
		id := g.members[rank].session
		if g.members[rank].gone != wire.CodeOK || seen[id] {
			continue
		}
		seen[id] = true
		looks := statusCalls
		for _, w := range v.m.sessions[id].waiters {
			if looks--; looks < 0 {
				break
			}
			if of, wait := v.waitOf(w); of == g && w.rank >= from && w.rank < end {
				waits[w.rank] = append(waits[w.rank], wait)
			}
		}
	}
	for rank, ws := range waits { // the longest first
		slices.SortFunc(ws, func(a, b wire.WaitStatus) int {
			return cmp.Or(-cmp.Compare(a.Waited, b.Waited), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Tag, b.Tag))
		})
		waits[rank] = ws[:min(len(ws), wire.StatusWaits)]
	}
	return waits
}

// waitOf returns w as a send or a receive; of is nil if it is neither.
func (v *viewer) waitOf(w *waiter) (of *group, wait wire.WaitStatus) {
	switch o := w.owner.(type) {
	case *reader:
		return o.stream.of.g, wire.WaitStatus{Verb: "recv", Peer: o.stream.src, Tag: o.stream.of.tag, Waited: v.ago(w.since)}
	case *sender:
		return o.stream.of.g, wire.WaitStatus{Verb: "send", Peer: o.stream.dst, Tag: o.stream.of.tag, Waited: v.ago(w.since)}
	}
	return nil, wait
}

func (v *viewer) failureStatus(f *pastFailure) *wire.FailureStatus {
	return new(f.status(v.ago(f.at), v.prefix))
}

func (v *viewer) failureStatuses(failures []pastFailure) (rows []wire.FailureStatus) {
	for i := range failures {
		rows = append(rows, *v.failureStatus(&failures[i]))
	}
	return rows
}

// endedGroups adds groups that ended with a failure, and those that were never formed.
func (v *viewer) endedGroups() {
	for _, e := range v.m.endedGroups {
		if !strings.HasPrefix(e.key.name, v.prefix) {
			continue
		}
		s := wire.GroupStatus{
			Name: e.key.name, Run: e.key.run, Generation: e.gen, Size: e.size, Age: max(v.now-e.began, 0), Ended: v.ago(e.at),
			Failures: v.failureStatuses(e.failures),
		}
		if e.revocation != nil {
			s.Revoked = v.failureStatus(e.revocation)
		}
		v.Groups = append(v.Groups, s)
	}
}

// keys adds the keys that calls wait for.
func (v *viewer) keys() {
	looks := statusScans
	for key, waits := range v.m.keyWaits {
		if looks--; looks < 0 {
			break
		}
		if !strings.HasPrefix(key, v.prefix) {
			continue
		}
		s := wire.KeyStatus{Key: key, Calls: waits.Len()}
		p := waits.Front()
		for range min(waits.Len(), maxDoing) { // some may be listed late
			s.Waited = max(s.Waited, v.ago(p.Value.(*keyWait).since))
			p = p.Next()
		}
		v.Keys = append(v.Keys, s)
	}
	slices.SortFunc(v.Keys, func(a, b wire.KeyStatus) int {
		return cmp.Or(-cmp.Compare(a.Waited, b.Waited), cmp.Compare(a.Key, b.Key))
	})
	v.Keys = v.Keys[:min(len(v.Keys), wire.StatusKeys)]
}
