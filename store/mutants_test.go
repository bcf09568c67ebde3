package store_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule each, which a test must notice.
var mutants = []mutationtest.Mutant{
	{
		Name: "the end of a connection of a store that cannot be opened needs its outbox",
		File: "server.go", Old: `if c.out != nil {`, New: `if true {`,
		Test: "^TestEachOperationInEachState$/^not_open$/^pipe$",
	},
	{
		Name: "stacks are asked of a store that cannot be opened",
		File: "stacks.go", Old: `	err := m.open()
	var q *stackQuery`, New: `	var err error
	var q *stackQuery`,
		Test: "^TestEachOperationInEachState$/^not_open$/^loop$",
	},
	{
		Name: "the revision does not wait for the log",
		File: "serve_memory.go", Old: `case isLiveness(c.req.Op, c.req.ID): // peers send it only after the welcome
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, 0, new(wire.Reply)) })`, New: `case c.req.Op == wire.OpPing:
			return c.out.AppendUrgent(func(b []byte) []byte { return c.encode(b, wire.OpPing, c.req.ID, &c.rep) })`,
		Test: "^TestStatusWhileTheDiskStalls$",
	},
	{
		Name: "a deadline that passes in a stop is held again by each later stop",
		File: "memory.go", Old: `		if m.heldUntil < m.timerAt {
			m.heldUntil = m.timerAt + catchUpTime
		}
	}
	if now < m.heldUntil {
		return m.heldUntil - catchUpTime - 1
	}`, New: `		m.heldUntil = now + catchUpTime
	}
	if now < m.heldUntil {
		return m.timerAt - 1
	}`,
		Test: "^TestStutteringProcessEndsTTLs$",
	},
	{
		Name: "a late check begins to count the silence of a peer again",
		File: "liveness.go", Old: `	l.missed++
	most :=`, New: `	if l.missed++; late {
		l.missed = 0
	}
	most :=`,
		Test: "^TestStutteringServerFindsSilentPeers$",
	},
}

// TestMutants shows that the tests notice each broken rule.
func TestMutants(t *testing.T) { mutationtest.Run(t, mutants, len(mutants)) }
