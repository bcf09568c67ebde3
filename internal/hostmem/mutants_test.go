package hostmem

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// Each mutant breaks one rule. The simulation must find a history that shows it: of messages if the rule is in
// messages.go, and of operations otherwise.
var mutants = []struct {
	name     string
	file     string
	old, new string // old occurs exactly once
}{
	{
		"a rank that cannot take part votes at the store without making the record slow",
		"hostmem.go", `sends && !m.post(ctx, c, payload):
		return m.settle(c.Seq, phaseSlow)`, `sends && !m.post(ctx, c, payload):
		return newState(c.Seq, phaseSlow, 0, m.rank)`,
	},
	{
		"a rank that has waited for too long votes at the store without making the record slow",
		"hostmem.go", `settled(seq) })
	return m.settle(seq, phaseSlow)`, `settled(seq) })
	if s := state(m.load(word)); s.seq() == seq {
		return s
	}
	return newState(seq, phaseSlow, 0, m.rank)`,
	},
	{
		"memory decides before all ranks have joined",
		"hostmem.go", `m.load(wordJoined) < uint64(m.ranks)`, `m.load(wordJoined) == 0`,
	},
	{
		"memory decides from this rank's first record on",
		"hostmem.go", `m.first = max(m.first, m.load(m.rankWord(rank, wordStart)))`, `_, m.first = rank, m.start`,
	},
	{
		"the last rank is not waited for",
		"hostmem.go", `next.arrivals(c.Seq) < m.ranks:
			return m.await(ctx, c.Seq)
		case m.agree(c):`, `next.arrivals(c.Seq) < m.ranks-1:
			return m.await(ctx, c.Seq)
		default:`,
	},
	{
		"different calls agree",
		"hostmem.go", `if err != nil || !core.Agree(c, &theirs)`, `if err != nil || false`,
	},
	{
		"a slow record becomes done",
		"hostmem.go", `		s := state(m.load(word))
		if s.settled(seq) {
			return m.final(s, seq)
		}
		next`, `		s := state(m.load(word))
		if s.settled(seq) && p == phaseSlow {
			return m.final(s, seq)
		}
		next`,
	},
	{
		"a done record becomes slow",
		"hostmem.go", `		s := state(m.load(word))
		if s.settled(seq) {
			return m.final(s, seq)
		}
		next`, `		s := state(m.load(word))
		if s.settled(seq) && p == phaseDone {
			return m.final(s, seq)
		}
		next`,
	},
	{
		"a record is settled without compare-and-swap",
		"hostmem.go", `if m.swap(word, uint64(s), uint64(next)) {
			m.ring`, `if m.store(word, uint64(next)); true {
			m.ring`,
	},
	{
		"a rank arrives at a record that is slow",
		"hostmem.go", `		if s.settled(c.Seq) {
			return m.final(s, c.Seq)
		}
		next`, `		if s.settled(c.Seq) && s.phase() == phaseDone {
			return m.final(s, c.Seq)
		}
		next`,
	},
	{
		"a rank passes a record before it has read it",
		"hostmem.go", `	if s.last() != m.rank {`, `	m.pass(c.Seq)
	if s.last() != m.rank {`,
	},
	{
		"a call that differs from the root's gets its payload",
		"hostmem.go", `!core.Agree(&theirs, c) && c.No == wire.CodeOK`, `false`,
	},
	{
		"a rank that has not arrived at a done record gets its success",
		"hostmem.go", `if s.last() != m.rank {`, `if c.RootOnly && s.last() != m.rank {`,
	},
	{
		"a rank that is far ahead writes to the word of an earlier record",
		"hostmem.go", `if !m.gone && (ahead || seq != m.passed+1) {`, `if !m.gone && seq != m.passed+1 {`,
	},
	{
		"a refusal counts as a yes",
		"hostmem.go", `	if c.No != wire.CodeOK {
		return false
	}
	_, why`, `	_, why`,
	},
	{
		"a rank that has closed a channel uses memory for the next one of that name",
		"closed.go", `return ok ||`, `return ok && false ||`,
	},
	{
		"a rank whose vote was lost goes on in memory",
		"hostmem.go", `SlowNext() { m.slow = true }`, `SlowNext() {}`,
	},
	{
		"a head is written again before all ranks have read it",
		"layout.go", `if c.Seq <= m.low+uint64(m.heads) {`, `if true {`,
	},
	{
		"a payload is overwritten before all ranks have read it",
		"space.go", `return e.seq <= passed`, `return e.seq < seq`,
	},
	{
		"a payload is overwritten where the ring has wrapped",
		"space.go", `limit = first.at`, `limit = total`,
	},
	{
		"a payload is written beyond the end",
		"space.go", `at+size > limit`, `at > limit`,
	},
	{
		"the states of two records share a word",
		"layout.go", `int(seq%uint64(s.window))`, `int(seq%uint64(s.window/8))`,
	},
	{
		"a message is passed in memory while an earlier one is at the store",
		"messages.go", `m.load(pair+pairTaken) == stored &&`, ``,
	},
	{
		"a message is passed to a receiver that does not wait",
		"messages.go", `return m.load(pair+pairState) == waiting && m.load`, `return m.load`,
	},
	{
		"a message is passed in memory that a rank has turned off",
		"messages.go", ` && !m.isOff()
	}`, `
	}`,
	},
	{
		"a sender ends the wait without compare-and-swap",
		"messages.go", `if !m.swap(pair+pairState, waiting, 0) {`, `if m.store(pair+pairState, 0); false {`,
	},
	{
		"a receiver ends its wait without compare-and-swap",
		"messages.go", `	if m.swap(pair+pairState, waiting, 0) {`, `	if s := m.load(pair + pairState); s == waiting {
		m.store(pair+pairState, 0)`,
	},
	{
		"a receiver does not look whether its wait has ended",
		"messages.go", `	if m.swap(pair+pairState, waiting, 0) {`, `	if m.store(pair+pairState, 0); true {`,
	},
	{
		"a wait has the number of the messages that were received before the last one",
		"messages.go", `m.store(pair+pairTaken, stored)`, `m.store(pair+pairTaken, stored+1)`,
	},
}

// TestMutants shows that the simulation notices each broken rule.
func TestMutants(t *testing.T) {
	tries := mutationtest.Sampled(t, len(mutants), 6)
	for i, m := range mutants {
		mutationtest.Applies(t, m.file, m.old)
		if tries(i) {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				test := "^TestSimulation$"
				if m.file == "messages.go" {
					test = "^TestMessages$"
				}
				mutationtest.Noticed(t, m.file, m.old, m.new, "-run", test)
			})
		}
	}
}
