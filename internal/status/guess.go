package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// guessAfter is how long ranks do the same before anything is concluded from it: in a job without a
// fault, ranks compute and wait in turn.
const guessAfter = 2 * time.Second

// maybe marks a note that may be wrong.
const maybe = "guess: "

// guesses returns what follows from the processes of g, if it is a job none of whose ranks waits for
// another one in the store: which keys its ranks wait for, or else which rank differs from all others.
// Stopped and ended processes are notes already.
func (t *torchJobs) guesses(g *torchGroup) []string {
	if !g.world || t.unknown > 0 || len(g.ranks) < max(g.knownSize(), 2) || t.waitsIn(g) {
		return nil
	}
	for _, p := range g.ranks {
		if last := newest(p); halted(p) || last != "" && last != g.name {
			return nil
		}
	}
	if notes := g.keyNotes(); len(notes) > 0 {
		return notes
	}
	return g.oneDiffers()
}

// waitsIn reports whether a process of g waits in an operation of a process group of which it is
// known to be a rank.
func (t *torchJobs) waitsIn(g *torchGroup) bool {
	mine := map[*tcpwire.Process]bool{}
	for _, p := range g.ranks {
		mine[p] = true
	}
	for _, of := range t.groups {
		if len(of.recorded) > 0 {
			return true
		}
		for _, p := range of.ranks {
			if mine[p] && of.isWaitedInBy(p) {
				return true
			}
		}
	}
	return false
}

// keyNotes describes the keys that ranks of g have waited for, the first ones.
func (g *torchGroup) keyNotes() (notes []string) {
	waiting := map[string][]int{} // ranks, by key
	var free []int                // ranks that wait for no key
	for rank, p := range inOrder(g.ranks) {
		waits := false
		for _, w := range p.Waits {
			if w.For >= guessAfter && len(waiting) < mostNotes {
				waiting[w.Key], waits = append(waiting[w.Key], rank), true
			}
		}
		if !waits {
			free = append(free, rank)
		}
	}
	for key, ranks := range inOrder(waiting) {
		verb := "wait"
		if len(ranks) == 1 {
			verb = "waits"
		}
		notes = append(notes, fmt.Sprintf("%s %s for key %s, which does not exist", g.rankTexts(ranks), verb, quote(key)))
		switch {
		case len(waiting) > 1:
		case len(free) == 1 && len(g.ranks) > 2:
			notes = append(notes, maybe+g.rankTexts(free)+", which alone does not wait for it, is to set it")
		case len(ranks) == 1 && len(free) > 1:
			notes = append(notes, maybe+"the others wait for "+g.rankTexts(ranks))
		}
	}
	return notes
}

// oneDiffers names the rank that alone uses the processor, or alone does not.
func (g *torchGroup) oneDiffers() []string {
	in := map[string][]int{} // ranks, by state
	for rank, p := range g.ranks {
		if p.For < guessAfter {
			return nil
		}
		in[p.State] = append(in[p.State], rank)
	}
	one, alone := in[tcpwire.Computing], "uses the processor"
	if len(one) != 1 {
		one, alone = in[tcpwire.Sleeping], "uses no processor" // communication of GPUs is waited for with the processor
	}
	if len(one) != 1 || len(in[tcpwire.Computing])+len(in[tcpwire.Sleeping]) < len(g.ranks) {
		return nil
	}
	return []string{maybe + "the others wait for " + g.rankTexts(one) + ", which alone " + alone + words(", for %s", g.ranks[one[0]].For)}
}

// processText names a process, with its rank unless that is -1.
func processText(rank int, p *tcpwire.Process) string {
	if rank < 0 {
		return p.Label
	}
	return fmt.Sprintf("rank %d (%s)", rank, p.Label)
}

// rankTexts names ranks of g, one or a few of them with its process.
func (g *torchGroup) rankTexts(ranks []int) string {
	if len(ranks) > someRanks {
		return RankList(ranks)
	}
	var texts []string
	for _, rank := range ranks {
		texts = append(texts, processText(rank, g.ranks[rank]))
	}
	return strings.Join(texts, ", ")
}
