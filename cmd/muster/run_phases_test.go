package main_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// TestRunPrintsPhases checks that the phases of a run's ranks are printed every 10 s, when they have
// changed, and not those of another run.
func TestRunPrintsPhases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := store.New(new(store.Memory))
		defer s.Close()
		open := func(context.Context) (*store.Store, error) { return store.Prefix(s, ""), nil }
		phase := func(n int, run, name string) (p *pgroup.Phase) {
			var all sync.WaitGroup
			for rank := range n {
				all.Go(func() {
					g, err := pgroup.Create(t.Context(), pgroup.Config{Rank: rank, Size: n, Run: run, Store: s})
					assert.NoError(t, err)
					t.Cleanup(func() { _ = g.Close() })
					q := g.Phase(name, 48)
					if rank > 0 {
						return
					}
					p = q
					sub, err := g.Sub(t.Context(), "first", 0) // it has the phase too
					assert.NoError(t, err)
					t.Cleanup(func() { _ = sub.Close() })
				})
			}
			all.Wait()
			return p
		}
		var out strings.Builder
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Second)
		defer cancel()
		go muster.PrintPhases(ctx, open, "run-1", &out)
		time.Sleep(11 * time.Second)
		loading := phase(2, "run-1", "loading\a")
		phase(1, "run-2", "of another run")
		time.Sleep(20 * time.Second)
		loading.Done(12)
		time.Sleep(22 * time.Second)
		loading.End()
		<-ctx.Done()
		synctest.Wait()
		require.Equal(t, "muster: \"loading\\a: 2 ranks, 0 of 48\"\nmuster: \"loading\\a: 2 ranks, 0 to 12 of 48\"\nmuster: \"loading\\a: 1 rank, 0 of 48\"\n", out.String())
	})
}
