package etcdlog_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/internal/scenario"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// scenarios has the rules of stores as text.
const scenarios = "../../internal/scenario/testdata"

// TestScenarios runs the rules of stores on a store whose log is in an etcd in memory. When it restarts,
// another leader takes over.
func TestScenarios(t *testing.T) {
	scenario.Run(t, scenarios, scenario.Engine{
		Name: "a replicated store",
		Has:  []scenario.Feature{scenario.Whole, scenario.LimitsOf, scenario.Rights, scenario.Restarts},
		Start: func(t *testing.T, s scenario.Settings) func(string) scenario.Session {
			c, o := newMemEtcd().Client(direct{}), &etcdlog.Options{Root: newRoot()}
			open := func() *store.Memory {
				l, err := etcdlog.Lead(context.Background(), c, "127.0.0.1:1", o)
				if err != nil {
					t.Error(err)
				}
				return &store.Memory{Limits: s.Limits, Replica: l}
			}
			return scenario.Restarting(t, s, open, func(backup string) error {
				o = &etcdlog.Options{Root: newRoot()}
				return etcdlog.Restore(context.Background(), c, backup, o)
			})
		},
	})
}

// TestLargestOnEtcd checks that the longest key and the largest value, of more bytes than a request to
// etcd may have by default, are in the log.
func TestLargestOnEtcd(t *testing.T) {
	c, root, ctx := client(t, etcd(t)), newRoot(), bounded(t)
	m := lead(t, c, &etcdlog.Options{Root: root})
	key, value := strings.Repeat("k", wire.MaxKey), bytes.Repeat([]byte("0123456789abcdef"), wire.MaxValue/16)
	require.NoError(t, store.New(m).Set(ctx, key, value, nil))
	require.NoError(t, m.Close())
	got, err := store.New(lead(t, c, &etcdlog.Options{Root: root})).Get(ctx, key)
	require.NoError(t, err)
	require.True(t, bytes.Equal(value, got))
}

// TestLog runs the contract of all logs over one in etcd.
func TestLog(t *testing.T) {
	c := client(t, etcd(t))
	logtest.Run(t, func(*testing.T) logtest.Medium { return &etcdlog.Home{Client: c, Root: newRoot()} })
}
