package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Progress is the progress of a rank in its phase.
type Progress struct {
	Phase string  `json:"phase"`
	Done  int64   `json:"done"`
	Total int64   `json:"total,omitempty"` // 0: unknown
	Ago   float64 `json:"ago_seconds"`     // since it last made progress
	// Stalled is set if it has made none for the stall of the phase, and waits in no call.
	Stalled bool `json:"stalled,omitempty"`

	waits bool // in a call
	of    *wire.Phase
}

// progress returns the progress of a rank of g; nil if it is in no phase, or g has ended.
func (b *builder) progress(g *store.GroupStatus, r *store.RankStatus) *Progress {
	p := r.Progress
	if p == nil || p.ID == 0 || r.Gone != 0 || g.Revoked != nil || g.Ended >= 0 {
		return nil
	}
	_, waits := b.waitsIn(g, r)
	stall := max(p.Stall, 2*wire.ReportInterval(g.Size)) // a report may be late
	return &Progress{Phase: p.Name, Done: p.Done, Total: p.Total, Ago: seconds(p.Ago), Stalled: !waits && p.Stall > 0 && p.Ago > stall, waits: waits, of: p}
}

func (p *Progress) hasStalled() bool { return p != nil && p.Stalled }

// String returns the phase, how far the rank is, and when it last made progress.
func (p *Progress) String() string {
	if p.Stalled {
		return "no progress for " + Short(p.of.Ago) + ": " + p.of.String()
	}
	return p.of.String() + words(", %s ago", p.of.Ago)
}

// mostStalled is how many of the stalled ranks of a group have notes.
const mostStalled = 4

// stalledNotes names those of ranks that have stalled, unless another group has a note about the process:
// the phases of a group are those of the groups that were made of it.
func (b *builder) stalledNotes(ranks []Rank) (notes []string) {
	n := 0
	for i := range ranks {
		r := &ranks[i]
		p := process{r.of.Session, r.Label}
		if !r.Progress.hasStalled() || b.noted[p] && !b.shared[p] {
			continue
		}
		b.noted[p] = true
		if n++; n <= mostStalled {
			notes = append(notes, fmt.Sprintf("rank %d (%s) has made %v", r.Rank, r.Label, r.Progress))
		}
	}
	if n > mostStalled {
		notes = append(notes, fmt.Sprintf("%d more ranks have stalled", n-mostStalled))
	}
	return notes
}

// Phases sums up the phases that ranks of a group are in.
type Phases struct {
	Ranks int     `json:"ranks"`               // that are in one
	Least float64 `json:"least_done"`          // the least fraction that one of them has done; -1: no total is known
	Ago   float64 `json:"longest_ago_seconds"` // the longest time since one of them that waits in no call made progress
	// Texts has the phases in words, such as "loading shards: 8 ranks, 12 to 40 of 48": at most 4,
	// those of most ranks.
	Texts []string `json:"texts"`
}

// mostPhases bounds Phases.Texts.
const mostPhases = 4

// inPhase are the ranks that are in the same phase.
type inPhase struct {
	name        string
	total       int64
	ranks       int
	least, most int64
}

func (p *inPhase) String() string {
	text := fmt.Sprintf("%s: %d ranks", p.name, p.ranks)
	if p.ranks == 1 {
		text = p.name + ": 1 rank"
	}
	done := fmt.Sprintf(", %d", p.least)
	if p.least < p.most {
		done += fmt.Sprintf(" to %d", p.most)
	}
	switch {
	case p.total > 0:
		return text + done + fmt.Sprintf(" of %d", p.total)
	case p.most > 0:
		return text + done + " done"
	}
	return text
}

// phasesOf sums up the phases of ranks; nil if they are in none.
func phasesOf(ranks []Rank) *Phases {
	v := &Phases{Least: -1, Texts: []string{}}
	type key struct {
		name  string
		total int64
	}
	by := map[key]*inPhase{}
	for i := range ranks {
		p := ranks[i].Progress
		if p == nil {
			continue
		}
		v.Ranks++
		if done := min(float64(p.Done)/float64(p.Total), 1); p.Total > 0 && (v.Least < 0 || done < v.Least) {
			v.Least = done
		}
		if !p.waits {
			v.Ago = max(v.Ago, p.Ago)
		}
		at := key{p.Phase, p.Total}
		if by[at] == nil {
			by[at] = &inPhase{name: cmp.Or(p.Phase, "unnamed"), total: p.Total, least: p.Done}
		}
		x := by[at]
		x.ranks, x.least, x.most = x.ranks+1, min(x.least, p.Done), max(x.most, p.Done)
	}
	if v.Ranks == 0 {
		return nil
	}
	all := slices.SortedFunc(maps.Values(by), func(a, b *inPhase) int {
		return cmp.Or(b.ranks-a.ranks, cmp.Compare(a.name, b.name), cmp.Compare(a.total, b.total))
	})
	for _, p := range all[:min(len(all), mostPhases)] {
		v.Texts = append(v.Texts, p.String())
	}
	return v
}
