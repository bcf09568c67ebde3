package hostmem

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// Each mutant breaks one rule. A simulation must find a history that shows it.
var mutants = []mutationtest.Mutant{
	{
		Name: "a rank that cannot take part votes at the store without making the record slow",
		File: "hostmem.go", Old: `sends && !m.post(ctx, c, payload):
		return m.settle(c.Seq, phaseSlow)`, New: `sends && !m.post(ctx, c, payload):
		return newState(c.Seq, phaseSlow, 0, m.rank)`,
	},
	{
		Name: "a rank that has waited for too long votes at the store without making the record slow",
		File: "hostmem.go", Old: `settled(seq) })
	return m.settle(seq, phaseSlow)`, New: `settled(seq) })
	if s := state(m.load(word)); s.seq() == seq {
		return s
	}
	return newState(seq, phaseSlow, 0, m.rank)`,
	},
	{
		Name: "memory decides before all ranks have joined",
		File: "hostmem.go", Old: `m.load(wordJoined) < uint64(m.ranks)`, New: `m.load(wordJoined) == 0`,
	},
	{
		Name: "memory decides from this rank's first record on",
		File: "hostmem.go", Old: `m.first = max(m.first, m.load(m.rankWord(rank, wordStart)))`, New: `_, m.first = rank, m.start`,
	},
	{
		Name: "the last rank is not waited for",
		File: "hostmem.go", Old: `next.arrivals(c.Seq) < m.ranks:
			return m.await(ctx, c.Seq)
		case m.agree(c):`, New: `next.arrivals(c.Seq) < m.ranks-1:
			return m.await(ctx, c.Seq)
		default:`,
	},
	{
		Name: "different calls agree",
		File: "hostmem.go", Old: `if err != nil || !core.Agree(c, &theirs)`, New: `if err != nil || false`,
	},
	{
		Name: "a slow record becomes done",
		File: "hostmem.go", Old: `		s := state(m.load(word))
		if s.settled(seq) {
			return m.final(s, seq)
		}
		next`, New: `		s := state(m.load(word))
		if s.settled(seq) && p == phaseSlow {
			return m.final(s, seq)
		}
		next`,
	},
	{
		Name: "a done record becomes slow",
		File: "hostmem.go", Old: `		s := state(m.load(word))
		if s.settled(seq) {
			return m.final(s, seq)
		}
		next`, New: `		s := state(m.load(word))
		if s.settled(seq) && p == phaseDone {
			return m.final(s, seq)
		}
		next`,
	},
	{
		Name: "a record is settled without compare-and-swap",
		File: "hostmem.go", Old: `if m.swap(word, uint64(s), uint64(next)) {
			m.ring`, New: `if m.store(word, uint64(next)); true {
			m.ring`,
	},
	{
		Name: "a rank arrives at a record that is slow",
		File: "hostmem.go", Old: `		if s.settled(c.Seq) {
			return m.final(s, c.Seq)
		}
		next`, New: `		if s.settled(c.Seq) && s.phase() == phaseDone {
			return m.final(s, c.Seq)
		}
		next`,
	},
	{
		Name: "a rank passes a record before it has read it",
		File: "hostmem.go", Old: `	if s.last() != m.rank {`, New: `	m.pass(c.Seq)
	if s.last() != m.rank {`,
	},
	{
		Name: "a call that differs from the root's gets its payload",
		File: "hostmem.go", Old: `!core.Agree(&theirs, c) && c.No == wire.CodeOK`, New: `false`,
	},
	{
		Name: "a rank that has not arrived at a done record gets its success",
		File: "hostmem.go", Old: `if s.last() != m.rank {`, New: `if c.RootOnly && s.last() != m.rank {`,
	},
	{
		Name: "a rank that is far ahead writes to the word of an earlier record",
		File: "hostmem.go", Old: `if !m.gone && (ahead || seq != m.passed+1) {`, New: `if !m.gone && seq != m.passed+1 {`,
	},
	{
		Name: "a refusal counts as a yes",
		File: "hostmem.go", Old: `	if c.No != wire.CodeOK {
		return false
	}
	_, why`, New: `	_, why`,
	},
	{
		Name: "a rank that has closed a channel uses memory for the next one of that name",
		File: "closed.go", Old: `return ok ||`, New: `return ok && false ||`,
	},
	{
		Name: "a rank whose vote was lost goes on in memory",
		File: "hostmem.go", Old: `SlowNext() { m.slow = true }`, New: `SlowNext() {}`,
	},
	{
		Name: "a head is written again before all ranks have read it",
		File: "layout.go", Old: `if c.Seq <= m.low+uint64(m.heads) {`, New: `if true {`,
	},
	{
		Name: "a payload is overwritten before all ranks have read it",
		File: "space.go", Old: `return e.seq <= passed`, New: `return e.seq < seq`,
	},
	{
		Name: "a payload is overwritten where the ring has wrapped",
		File: "space.go", Old: `limit = first.at`, New: `limit = total`,
	},
	{
		Name: "a payload is written beyond the end",
		File: "space.go", Old: `at+size > limit`, New: `at > limit`,
	},
	{
		Name: "the states of two records share a word",
		File: "layout.go", Old: `int(seq%uint64(s.window))`, New: `int(seq%uint64(s.window/8))`,
	},
	{
		Name: "a message is passed in memory while an earlier one is at the store",
		File: "messages.go", Old: `m.load(pair+pairTaken) == stored &&`, New: ``,
	},
	{
		Name: "a message is passed to a receiver that does not wait",
		File: "messages.go", Old: `return m.load(pair+pairState) == waiting && m.load`, New: `return m.load`,
	},
	{
		Name: "a message is passed in memory that a rank has turned off",
		File: "messages.go", Old: ` && !m.isOff()
	}`, New: `
	}`,
	},
	{
		Name: "a sender ends the wait without compare-and-swap",
		File: "messages.go", Old: `if !m.swap(pair+pairState, waiting, 0) {`, New: `if m.store(pair+pairState, 0); false {`,
	},
	{
		Name: "a receiver ends its wait without compare-and-swap",
		File: "messages.go", Old: `	if m.swap(pair+pairState, waiting, 0) {`, New: `	if s := m.load(pair + pairState); s == waiting {
		m.store(pair+pairState, 0)`,
	},
	{
		Name: "a receiver does not look whether its wait has ended",
		File: "messages.go", Old: `	if m.swap(pair+pairState, waiting, 0) {`, New: `	if m.store(pair+pairState, 0); true {`,
	},
	{
		Name: "a wait has the number of the messages that were received before the last one",
		File: "messages.go", Old: `m.store(pair+pairTaken, stored)`, New: `m.store(pair+pairTaken, stored+1)`,
	},
}

// TestMutants shows that the simulations of operations and of messages notice each broken rule.
func TestMutants(t *testing.T) {
	mutationtest.Run(t, mutants, 6, "-run", "^(TestSimulation|TestMessages)$")
}
