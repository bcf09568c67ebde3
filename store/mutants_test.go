package store_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule each, which a test must notice.
var mutants = []struct {
	name     string
	file     string
	old, new string // old occurs exactly once
	test     string
}{
	{
		"the end of a connection of a store that cannot be opened needs its outbox",
		"server.go", `if c.out != nil {`, `if true {`,
		"^TestEachOperationInEachState$/^not_open$/^pipe$",
	},
	{
		"stacks are asked of a store that cannot be opened",
		"stacks.go", `	err := m.open()
	var q *stackQuery`, `	var err error
	var q *stackQuery`,
		"^TestEachOperationInEachState$/^not_open$/^loop$",
	},
	{
		"the revision does not wait for the log",
		"serve_memory.go", `case isLiveness(c.req.Op, c.req.ID): // peers send it only after the welcome
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, 0, new(wire.Reply)) })`, `case c.req.Op == wire.OpPing:
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, c.req.ID, &c.rep) })`,
		"^TestStatusWhileTheDiskStalls$",
	},
	{
		"a deadline that passes in a stop is held again by each later stop",
		"memory.go", `		if m.heldUntil < m.timerAt {
			m.heldUntil = m.timerAt + catchUpTime
		}
	}
	if now < m.heldUntil {
		return m.heldUntil - catchUpTime - 1
	}`, `		m.heldUntil = now + catchUpTime
	}
	if now < m.heldUntil {
		return m.timerAt - 1
	}`,
		"^TestStutteringProcessEndsTTLs$",
	},
	{
		"a late check begins to count the silence of a peer again",
		"liveness.go", `	l.missed++
	most :=`, `	if l.missed++; late {
		l.missed = 0
	}
	most :=`,
		"^TestStutteringServerFindsSilentPeers$",
	},
}

// TestMutants shows that the tests notice each broken rule.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: each mutant is built: not in a short run")
	}
	tries := mutationtest.Sampled(t, len(mutants), len(mutants))
	for i, m := range mutants {
		mutationtest.Applies(t, m.file, m.old)
		if tries(i) {
			t.Run(m.name, func(t *testing.T) { mutationtest.NoticedBy(t, m.file, m.old, m.new, m.test) })
		}
	}
}
