package core_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// scenarios has the rules of stores as text.
const scenarios = "../scenario/testdata"

// TestScenarios runs the rules on clients of a Memory: a Machine with a lock and a clock.
func TestScenarios(t *testing.T) { scenario.Run(t, scenarios, scenario.Pipe) }

// TestScenarioOfNumbers runs the rule for which clients choose the numbers of their requests.
func TestScenarioOfNumbers(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "numbered requests to a Memory",
		Has:  []scenario.Feature{scenario.Numbers},
		Only: []string{"numbers"},
		Start: func(t *testing.T, _ scenario.Settings) func(string) scenario.Session {
			m := new(store.Memory)
			t.Cleanup(func() { _ = m.Close() })
			return func(string) scenario.Session {
				var rep wire.Reply
				require.NoError(t, m.Do(t.Context(), &wire.Request{Op: wire.OpHello, Key: "a session"}, &rep))
				return scenario.Session{Engine: &numberedSession{memory: m, id: uint64(rep.N)}}
			}
		},
	})
}

// numberedSession makes the requests of a session as they are.
type numberedSession struct {
	memory *store.Memory
	id     uint64
	calls  atomic.Uint64
}

// Do implements store.Engine.
func (s *numberedSession) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	own := *req
	own.Session, own.ID = s.id, s.calls.Add(1)
	return s.memory.Do(ctx, &own, rep)
}

// Close implements store.Engine.
func (s *numberedSession) Close() error {
	return s.memory.Do(context.Background(), &wire.Request{Op: wire.OpGoodbye, Session: s.id}, new(wire.Reply))
}
