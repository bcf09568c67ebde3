package core

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/wire"
)

const (
	// maxMissing bounds how many missing ranks a failure names. If there are more, its reason has
	// their number.
	maxMissing = 1024
	maxDoing   = 16 // of those, whose activity it describes
)

// missing are the ranks that an operation waits for: the first maxMissing of them, and the number
// of all.
type missing struct {
	ranks []int
	count int
}

// add adds a rank, which is higher than those before.
func (a *missing) add(rank int) {
	if a.count++; len(a.ranks) < maxMissing {
		a.ranks = append(a.ranks, rank)
	}
}

// addMissing adds the missing ranks to a failure of operation seq, and what they do if they are members of g. If
// they are more than it names, its reason begins with their number.
func (m *Machine) addMissing(v *wire.Failure, g *group, seq uint64, a missing) {
	v.Missing = a.ranks
	if g != nil {
		v.Doing = m.doing(g, seq, a.ranks)
	}
	if a.count > len(a.ranks) {
		all := fmt.Sprintf("%d ranks are missing, of which the first %d are named", a.count, len(a.ranks))
		v.Reason = strings.TrimSuffix(all+": "+v.Reason, ": ")
	}
}

// doing describes what each of ranks does at the moment, for a failure of operation seq (0: it has no
// number) that has them as missing.
func (m *Machine) doing(g *group, seq uint64, ranks []int) (what []string) {
	for _, r := range ranks[:min(len(ranks), maxDoing)] {
		what = append(what, m.doingOf(g, seq, r))
	}
	return what
}

// doingOf describes what a rank does: the call that it waits in, in this group or in another group
// of the same process, or else its last call.
func (m *Machine) doingOf(g *group, seq uint64, rank int) string {
	s := &g.members[rank]
	switch s.gone {
	case wire.CodeLost:
		return "lost"
	case wire.CodeLeft:
		return "left"
	}
	what, here := m.waitOf(g, rank)
	if here {
		return what
	}
	switch {
	case what != "":
	case s.verb == "":
		what = fmt.Sprintf("no call since it joined %s ago", m.since(g.began))
	default:
		what = fmt.Sprintf("in no call; %s, %s ago", wire.LastCall(s.verb, s.seq, seq), m.since(s.at))
	}
	if p := s.progress; p != nil && p.phase.ID != 0 { // how far it is in it is not in the log
		what += "; its phase is " + p.phase.Name
	}
	return what
}

// waitOf describes the call that a rank waits in, here in g, or in another group of the same process;
// "" is none.
func (m *Machine) waitOf(g *group, rank int) (what string, here bool) {
	s := &g.members[rank]
	for _, w := range m.sessions[s.session].inOrder() {
		of, doing := w.owner.doing(w)
		switch {
		case of == nil || doing == "":
		case of == g && w.rank == rank:
			return fmt.Sprintf("in %s for %s", doing, m.since(w.since)), true
		case of != g && of.members[w.rank].label == s.label && s.session != Local:
			what = fmt.Sprintf("in %s of group %q for %s", doing, of.key.name, m.since(w.since))
		}
	}
	return what, false
}

// sharedCause returns the reasons for which several of ranks lost their connections at the same
// time, and may still resume: one relay that failed must not look like many failed ranks. It is
// empty if there is none.
func (m *Machine) sharedCause(g *group, ranks []int) string {
	whys, of := []string{}, map[string]int{}
	for _, r := range ranks {
		s := m.sessions[g.members[r].session]
		if s == nil || s.sharedCause == "" {
			continue
		}
		if of[s.sharedCause]++; of[s.sharedCause] == 1 {
			whys = append(whys, s.sharedCause)
		}
	}
	for i, why := range whys {
		if of[why] < len(ranks) {
			whys[i] = fmt.Sprintf("%d of them: %s", of[why], why)
		}
	}
	return strings.Join(whys, "; ")
}

// since returns the time since at, rounded to two digits.
func (m *Machine) since(at Time) time.Duration { return RoundTwoDigits(m.now - at) }
