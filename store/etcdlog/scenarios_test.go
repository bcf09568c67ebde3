package etcdlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/store/etcdlog/internal/memetcd"
)

// TestScenarios runs the rules of stores, as text, on a store whose log is in an etcd in memory.
func TestScenarios(t *testing.T) {
	scenario.Run(t, "../../internal/scenario/testdata", scenario.Engine{
		Name:  "a replicated store",
		Lacks: []scenario.Feature{scenario.Connections, scenario.Rights, scenario.Restarts},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			l, err := etcdlog.Lead(t.Context(), memetcd.New().Client(direct{}), "127.0.0.1:1", &etcdlog.Options{Root: newRoot()})
			require.NoError(t, err)
			m := &store.Memory{Limits: s.Limits, Replica: l}
			t.Cleanup(func() {
				_ = m.Close()
				_ = l.Close()
			})
			return func(string) scenario.Session { return scenario.Local(t, m) }
		},
	})
}
