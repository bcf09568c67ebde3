package core_test

import (
	"fmt"
	"slices"

	"github.com/muster-pg/muster/wire"
)

// statusEach is the number of steps between two checks of the status: one check takes as long as
// several steps.
const statusEach = 32

// q1StatusIsTrue checks Q1: a status is what the auditor knows: the generations, the present ranks,
// and the undecided records with the votes that they have and those that they need.
func q1StatusIsTrue(a *audit) {
	if a.step%statusEach != 0 {
		return
	}
	all, err := statusOf(a.w.m, a.now, "")
	if err != nil {
		breaks("Q1 a status is true", "%v", err)
	}
	if got, want := int(all.Server.Calls), a.w.m.Holdings().Waiters; got != want {
		breaks("Q1 a status is true", "%d calls wait, there are %d", got, want)
	}
	seen := map[uint64]*wire.GroupStatus{}
	rendezvouses := 0
	for i := range all.Groups {
		switch g := &all.Groups[i]; {
		case g.Ended >= 0:
		case g.Generation == 0:
			rendezvouses++
		default:
			seen[g.Generation] = g
		}
	}
	if len(seen) != len(a.groups) || rendezvouses != a.w.m.Holdings().Forming {
		breaks("Q1 a status is true", "%d groups and %d rendezvouses, there are %d and %d", len(seen), rendezvouses, len(a.groups), a.w.m.Holdings().Forming)
	}
	for gen, g := range a.groups {
		if seen[gen] == nil {
			breaks("Q1 a status is true", "generation %d is not there", gen)
		}
		q1GroupIsTrue(g, seen[gen])
	}
}

func q1GroupIsTrue(g *group, s *wire.GroupStatus) {
	if s.Name != g.key.name || s.Run != g.key.run || s.Present != g.present || len(s.Ranks) != len(g.members) || (s.Revoked != nil) != (g.revocation != nil) {
		breaks("Q1 a status is true", "generation %d is %q %q with %d of %d, over: %v", g.gen, s.Name, s.Run, s.Present, len(s.Ranks), s.Revoked != nil)
	}
	for rank := range g.members {
		if got, want := s.Ranks[rank].Gone, g.members[rank].gone; got != want {
			breaks("Q1 a status is true", "rank %d of generation %d is %s, not %s", rank, g.gen, got, want)
		}
	}
	// several uses of a channel's name may each have a record with this number
	want := map[string][]*record{}
	undecided := 0
	for _, ch := range g.channels {
		for _, r := range ch.records {
			if !r.done {
				key := fmt.Sprint(ch.name, " ", r.seq)
				want[key] = append(want[key], r)
				undecided++
			}
		}
	}
	open := 0
	for i := range s.Records {
		got := &s.Records[i]
		if got.Verb == "shrink" {
			continue
		}
		open++
		why := fmt.Sprintf("%s #%d of generation %d is not open", got.Verb, got.Seq, g.gen)
		for _, r := range want[fmt.Sprint(got.Channel, " ", got.Seq)] {
			if why = q1Untrue(r, got); why == "" {
				break
			}
		}
		if why != "" {
			breaks("Q1 a status is true", "%s", why)
		}
	}
	if open != min(undecided, wire.StatusRecords) {
		breaks("Q1 a status is true", "%d records of generation %d are open, there are %d", open, g.gen, undecided)
	}
}

// q1Untrue describes what is wrong in s as the status of r, and returns "" if it is right.
func q1Untrue(r *record, s *wire.RecordStatus) string {
	came, missing := s.Arrived.First(len(r.yes)), s.Missing.First(len(r.yes))
	for rank := range r.yes {
		voted := r.yes[rank] != nil
		if slices.Contains(came, rank) != voted {
			return fmt.Sprintf("rank %d has come to %s #%d: %v", rank, s.Verb, s.Seq, !voted)
		}
		elects := !r.call.RootOnly || rank == r.call.Root
		// waits for space, which its slowest readers make
		held := r.call.RootOnly && r.yes[r.call.Root] != nil
		if !held && slices.Contains(missing, rank) != (elects && !voted) {
			return fmt.Sprintf("rank %d is missing in %s #%d: %v", rank, s.Verb, s.Seq, voted)
		}
	}
	return ""
}
