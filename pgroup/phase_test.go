package pgroup_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// These tests check what a rank reports; internal/scenario has the rules of the store (stall*.txt).

// TestStall checks that a rank that reports progress is waited for, for 10 h, and that one which then
// hangs is named a minute later.
func TestStall(t *testing.T) {
	t.Run("group", func(t *testing.T) {
		testStall(t, func(_ context.Context, _ *testing.T, g *pgroup.Group) *pgroup.Group { return g })
	})
	t.Run("sub", func(t *testing.T) {
		testStall(t, func(ctx context.Context, t *testing.T, g *pgroup.Group) *pgroup.Group {
			sub, err := g.Sub(ctx, "all", 0, 1, 2)
			ok(t, g, "sub", err)
			return sub
		})
	})
}

func testStall(t *testing.T, meets func(context.Context, *testing.T, *pgroup.Group) *pgroup.Group) {
	patient := place(inMemory).with(func(c *pgroup.Config) { c.Stall = time.Minute })
	synctest.Test(t, func(t *testing.T) {
		ranks(t, 3, patient, func(t *testing.T, world *pgroup.Group) {
			ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
			defer cancel()
			g := meets(ctx, t, world)
			defer g.Close()
			if g.Rank() == 2 {
				p := world.Phase("loading shards", 1000)
				for shard := range int64(800) {
					time.Sleep(45 * time.Second)
					p.Done(shard + 1)
				}
				ok(t, g, "barrier", g.Barrier(ctx))
				p.End()
				q := world.Phase("compiling", 0)
				defer q.End()
				time.Sleep(30*time.Second + 600*time.Millisecond) // between two looks
				q.Done(12)
				time.Sleep(10 * time.Minute) // it hangs, and its goroutines do not
				rankError(t, g, g.Barrier(ctx), pgroup.ErrStalled)
				return
			}
			ok(t, g, "barrier", g.Barrier(ctx))
			err := g.Barrier(ctx)
			v := rankError(t, g, err, pgroup.ErrStalled, "barrier #2", "stalled after 91.25s: rank 2: no progress for 1m0s: compiling, 12")
			equal(t, g, "missing", v.Missing, []int{2})
			assert.ErrorIs(t, err, pgroup.ErrTimeout)
		})
	})
}

// TestReports checks which reports a rank sends: at once and then one a second at most, none without
// news, and those that the store has not got again.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // protects sent
		var sent []wire.Phase
		var fails atomic.Bool
		s := hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
			if req.Op == wire.OpProgress {
				mu.Lock()
				sent = append(sent, req.Phase)
				mu.Unlock()
				if fails.Load() {
					return store.ErrUnavailable
				}
			}
			return next.Do(ctx, req, rep)
		})
		reports := func(want ...wire.Phase) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, want, sent)
			sent = nil
		}
		g, err := pgroup.Create(t.Context(), pgroup.Config{Size: 1, Store: s})
		require.NoError(t, err)
		outer := g.PhaseWithStall("outer", 2, time.Hour)
		reports(wire.Phase{ID: 1, Name: "outer", Total: 2, Stall: time.Hour})
		inner := g.Channel("c").Phase(strings.Repeat("ü", 80), -1)
		for n := range int64(1000) {
			inner.Done(n)
		}
		reports()
		time.Sleep(time.Second)
		name := strings.Repeat("ü", 62) + "…"
		reports(wire.Phase{ID: 2, Name: name, Done: 999, Ago: 750 * time.Millisecond})
		time.Sleep(time.Minute)
		reports()
		fails.Store(true)
		outer.Done(1)
		inner.End()
		inner.End()
		time.Sleep(2 * time.Second)
		back := wire.Phase{ID: 1, Name: "outer", Done: 1, Total: 2, Stall: time.Hour}
		late := back
		late.Ago = time.Second
		reports(back, late)
		fails.Store(false)
		time.Sleep(time.Second)
		late.Ago = 2 * time.Second
		reports(late)
		outer.End()
		time.Sleep(time.Second)
		reports(wire.Phase{})
		require.NoError(t, g.Close())
		g.Phase("after the end", 0).End()
		time.Sleep(time.Second)
		reports()
	})
}

// TestPhasesAtOnce checks that a phase in the background, which makes no progress, does not hide that of
// another.
func TestPhasesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patient := place(inMemory).with(func(c *pgroup.Config) { c.Stall = 2 * time.Second })
		ranks(t, 2, patient, func(t *testing.T, g *pgroup.Group) {
			if g.Rank() == 1 {
				p := g.Phase("training", 0)
				defer p.End()
				defer g.Phase("uploading", 0).End()
				for n := range int64(10) {
					time.Sleep(1900 * time.Millisecond)
					p.Done(n + 1)
				}
			}
			ok(t, g, "barrier", g.Barrier(t.Context()))
		})
	})
}
