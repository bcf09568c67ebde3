package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// guessAfter is how long ranks do the same before anything is concluded from it: in a job without a
// fault, ranks compute and wait in turn.
const guessAfter = 2 * time.Second

// maybe marks a note that may be wrong.
const maybe = "guess: "

// guess adds what follows from the processes of a job, none of whose ranks waits for another one in
// the store: which keys its ranks wait for, and which rank differs from all others. Stopped and ended
// processes are notes already.
func (t *torchJobs) guess() {
	for _, g := range t.groups {
		if !g.world || g.others > 0 || len(g.ranks) < 2 || !t.isNewest(g) {
			continue
		}
		size := g.size
		for rank := range g.ranks {
			size = max(size, rank+1)
		}
		if len(g.ranks) < size || !g.allRun() || t.waitsIn(g) {
			continue
		}
		if notes := g.keyNotes(); len(notes) > 0 {
			g.guesses = append(g.guesses, notes...)
		} else if note := g.oneDiffers(); note != "" {
			g.guesses = append(g.guesses, note)
		}
	}
}

// isNewest reports whether no process of g has joined another group of all ranks since.
func (t *torchJobs) isNewest(g *torchGroup) bool {
	for _, p := range g.ranks {
		newest := ""
		for _, m := range p.Members {
			if isWorld(m.Group) && t.groups[m.Group] != nil {
				newest = m.Group
			}
		}
		if newest != "" && newest != g.name {
			return false
		}
	}
	return true
}

// allRun reports whether no process of g is stopped or has ended.
func (g *torchGroup) allRun() bool {
	for _, p := range g.ranks {
		if p.Ended() || p.State == tcpwire.Stopped {
			return false
		}
	}
	return true
}

// waitsIn reports whether a process of g waits in an operation of a process group.
func (t *torchJobs) waitsIn(g *torchGroup) bool {
	for _, of := range t.groups {
		if len(of.recorded) > 0 {
			return true
		}
		for _, w := range of.waits {
			for rank := range w.ranks {
				if p := of.ranks[rank]; slices.Contains(slices.Collect(maps.Values(g.ranks)), p) {
					return true
				}
			}
		}
	}
	return false
}

// keyNotes describes the keys that ranks of g have waited for, the first ones.
func (g *torchGroup) keyNotes() (notes []string) {
	waiting := map[string][]int{} // ranks, by key
	waits := map[int]bool{}
	for _, rank := range slices.Sorted(maps.Keys(g.ranks)) {
		for _, w := range g.ranks[rank].Waits {
			if w.For >= guessAfter && len(waiting) < mostNotes {
				waiting[w.Key], waits[rank] = append(waiting[w.Key], rank), true
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(waiting)) {
		ranks := waiting[key]
		verb := "wait"
		if len(ranks) == 1 {
			verb = "waits"
		}
		notes = append(notes, fmt.Sprintf("%s %s for key %s, which does not exist", g.rankTexts(ranks), verb, quote(key)))
	}
	var free []int // ranks that wait for no key
	for rank := range g.ranks {
		if !waits[rank] {
			free = append(free, rank)
		}
	}
	slices.Sort(free)
	switch {
	case len(waiting) != 1:
	case len(free) == 1 && len(g.ranks) > 2:
		notes = append(notes, maybe+g.rankTexts(free)+", which alone does not wait for it, is to set it")
	case len(waits) == 1 && len(free) > 1:
		notes = append(notes, maybe+"the others wait for "+g.rankTexts(slices.Collect(maps.Keys(waits))))
	}
	return notes
}

// oneDiffers names the rank that alone uses the processor, or alone does not.
func (g *torchGroup) oneDiffers() string {
	in := map[string][]int{} // ranks, by state
	for rank, p := range g.ranks {
		if p.For < guessAfter {
			return ""
		}
		in[p.State] = append(in[p.State], rank)
	}
	computes, sleeps := in[tcpwire.Computing], in[tcpwire.Sleeping]
	switch {
	case len(computes)+len(sleeps) < len(g.ranks):
		return ""
	case len(computes) == 1:
		return maybe + "the others wait for " + g.rankTexts(computes) + ", which alone uses the processor" + words(", for %s", g.ranks[computes[0]].For)
	case len(sleeps) == 1: // communication of GPUs is waited for with the processor
		return maybe + "the others wait for " + g.rankTexts(sleeps) + ", which alone uses no processor" + words(", for %s", g.ranks[sleeps[0]].For)
	}
	return ""
}

// rankTexts names ranks of g, one or a few of them with its process.
func (g *torchGroup) rankTexts(ranks []int) string {
	if len(ranks) > someRanks {
		return RankList(ranks)
	}
	var texts []string
	for _, rank := range ranks {
		text := fmt.Sprintf("rank %d", rank)
		if p := g.ranks[rank]; p != nil && p.Label != "" {
			text += " (" + p.Label + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}
