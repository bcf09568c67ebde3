package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestHostsThatAreOut checks that agents of one job add to the hosts that the store keeps out, whatever
// each of them knows, and that a host is not out because of another job of that name.
func TestHostsThatAreOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(store.Memory)
		defer m.Close()
		agent := func(host string) *run {
			return &run{Agent: &Agent{Store: store.New(m), Job: "job", Host: host, MaxNodeFailures: 2}, waits: t.Context(), hosts: hosts{}}
		}
		admitted := func(host string) error {
			r := agent(host)
			st, err := r.read(t.Context())
			require.NoError(t, err)
			return r.admitted(st)
		}
		out := host{Failures: 2, Out: true}
		early, late, next := agent("a"), agent("b"), agent("a")
		early.keepOut("run 1", hosts{"c": out})
		time.Sleep(excludedTTL / 12)
		late.keepOut("run 1", hosts{"c": out, "d": out})
		for range 24 {
			time.Sleep(excludedTTL / 12)
			require.Error(t, admitted("c"))
			require.Error(t, admitted("d"))
			require.NoError(t, admitted("a"))
		}
		early.endKeeping()
		late.endKeeping()
		next.keepOut("run 2", hosts{"a": out})
		synctest.Wait()
		require.NoError(t, admitted("c"))
		require.Error(t, admitted("a"))
		next.endKeeping()
		time.Sleep(2 * excludedTTL)
		require.NoError(t, admitted("a"))

		s := agent("a").shared()
		_, err := s.update(t.Context(), func(st *state) error { // an elastic job, whose agents are killed
			*st = state{ID: "1", Nodes: map[string]*node{"n": {Host: "a"}}, Hosts: hosts{"a": out}}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, admitted("a"))
	})
}
