package membership_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// pair returns two workers of a job, and the groups of their view.
func pair(t *testing.T, at func() *store.Store) (ms []*membership.Member, vs []membership.View, gs []*pgroup.Group) {
	t.Helper()
	ms = []*membership.Member{join(t, at(), worker("a", 2, 0)), join(t, at(), worker("b", 2, 0))}
	vs = []membership.View{next(t, ms[0], 0, "a", "b"), next(t, ms[1], 1, "a", "b")}
	gs = make([]*pgroup.Group, 2)
	first := make(chan error, 1)
	go func() {
		g, err := pgroup.Create(bounded(t), vs[0].Config())
		gs[0] = g
		first <- err
	}()
	gs[1] = group(t, vs[1])
	require.NoError(t, <-first)
	t.Cleanup(func() { _ = gs[0].Close() })
	return ms, vs, gs
}

func TestOver(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		ms, vs, gs := pair(t, func() *store.Store { return store.New(memory) })
		ctx, cancel := context.WithCancel(vs[0].Context(bounded(t)))
		cancel()
		own := gs[0].Barrier(ctx)
		require.ErrorIs(t, own, context.Canceled)
		require.ErrorContains(t, own, `group "train view 1"`)
		require.False(t, vs[0].Over(own), "the caller's own")
		require.False(t, vs[1].Over(gs[1].Barrier(bounded(t))), "another rank's, and the view goes on")
		require.False(t, vs[0].Over(nil))
		require.False(t, vs[0].Over(errors.New("the loss is NaN")))

		later := gs[0].Channel("later")
		waits := make(chan error, 1)
		go func() { waits <- later.Barrier(vs[0].Context(bounded(t))) }()
		require.NoError(t, gs[1].Close())
		require.NoError(t, ms[1].Leave(bounded(t)))
		err := <-waits
		require.Error(t, err)
		require.True(t, vs[0].Over(err), "%v", err)
		require.True(t, vs[0].Over(fmt.Errorf("step 3: %w", err)))
		require.True(t, vs[0].Over(context.Cause(vs[0].Context(t.Context()))) || vs[0].Context(t.Context()).Err() == nil)
		require.False(t, vs[0].Over(errors.New("the loss is NaN")))
		why := ended(t, vs[0].Context(bounded(t)))
		require.False(t, vs[0].Over(&membership.ViewError{Job: "train", Generation: 2}), "another view's")
		for name, ours := range map[string]bool{"train view 1": true, "train view 1/a": true, "train view 1-again": false, "train view 10": false, "train view 1%2Fx view 1": false, "view 1": false} {
			lost := &pgroup.RankError{Group: name, Failure: &wire.Failure{Code: wire.CodeLost, By: -1}}
			require.Equal(t, ours, vs[0].Over(lost), name)
		}
		require.True(t, vs[0].Over(why))
		require.True(t, vs[0].Over(own), "it can no longer be distinguished from the end")
	})
}

// TestOverWaitsForTheNews checks that a rank which learns of the end first cancels its verb, and
// that the other ranks get that error before the end of the view.
func TestOverWaitsForTheNews(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		ms, vs, gs := pair(t, at)
		ctx, cancel := context.WithCancel(bounded(t))
		cancel()
		_ = gs[1].Barrier(ctx)
		err := gs[0].Barrier(bounded(t))
		require.ErrorIs(t, err, pgroup.ErrCancelled)
		over := make(chan bool, 1)
		go func() { over <- vs[0].Over(err) }()
		assert.NoError(t, ms[1].Close())
		require.True(t, <-over)
	})
}

func TestViewContext(t *testing.T) {
	s := testcluster.Store(t)()
	a := join(t, s, worker("a", 1, 2))
	v := next(t, a, 0, "a")
	type key struct{}
	parent, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, 1))
	ctx := v.Context(parent)
	require.Equal(t, 1, ctx.Value(key{}))
	cause := errors.New("enough")
	cancel(cause)
	<-ctx.Done()
	require.Equal(t, cause, context.Cause(ctx))
	require.False(t, v.Over(ctx.Err()))

	with, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	ctx = v.Context(with)
	_, bounded := ctx.Deadline()
	require.True(t, bounded)
	require.NoError(t, ctx.Err())
	join(t, s, worker("b", 1, 2))
	require.Equal(t, "b", ended(t, ctx).Joined[0].ID)
	require.True(t, v.Over(ctx.Err()))
	require.ErrorIs(t, context.Cause(v.Context(t.Context())), membership.ErrOver, "it is over already")
}

// TestConfigOfAView checks that the groups of two views, or of two jobs of one name, are different
// groups.
func TestConfigOfAView(t *testing.T) {
	s := testcluster.Store(t)()
	seen := map[string]bool{}
	for range 2 {
		a := join(t, s, worker("a", 1, 2))
		first := next(t, a, 0, "a")
		b := join(t, s, worker("b", 1, 2))
		second := settles(t, a, "a", "b")
		of := settles(t, b, "a", "b")
		require.Equal(t, second.Config().Name, of.Config().Name)
		require.Equal(t, second.Config().Run, of.Config().Run)
		require.Equal(t, 1, of.Config().Rank)
		require.Equal(t, fmt.Sprintf("train view %d", of.Generation), of.Config().Name)
		for _, v := range []membership.View{first, second} {
			seen[v.Config().Name+" "+v.Config().Run] = true
		}
		require.NoError(t, b.Leave(bounded(t)))
		require.NoError(t, a.Leave(bounded(t)))
	}
	require.Len(t, seen, 4)
}

func TestExclude(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 1, 3)), join(t, at(), worker("b", 1, 3))
		before := settles(t, a, "a", "b")
		c := join(t, at(), worker("c", 1, 3))
		v := settles(t, a, "a", "b", "c")
		of := settles(t, c, "a", "b", "c")
		require.Equal(t, []int{2}, v.Newcomers(before))
		require.Equal(t, []int{0, 1, 2}, of.Newcomers(membership.View{}))
		require.Empty(t, v.Newcomers(of))
		settles(t, b, "a", "b", "c")

		require.ErrorIs(t, v.Exclude(bounded(t), 3), membership.ErrInvalid)
		require.NoError(t, v.Exclude(bounded(t), 2))
		require.Empty(t, settles(t, a, "a", "b").Newcomers(before), "as before")
		settles(t, b, "a", "b")
		require.ErrorIs(t, v.Exclude(bounded(t), 0), membership.ErrOver, "it has no effect after the end of the view")
		_, err := c.Next(bounded(t))
		require.ErrorIs(t, err, membership.ErrExcluded)
		require.ErrorIs(t, err, membership.ErrEvicted)
		back := join(t, at(), worker("c", 1, 3))
		again := settles(t, a, "a", "b", "c")
		require.Equal(t, []int{2}, again.Newcomers(v), "it has joined again")
		settles(t, back, "a", "b", "c")
	})
}

// TestRemove checks that a worker that its launcher has removed has failed for the others, at once, and that
// one which has left is not touched.
func TestRemove(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 1, 2)), join(t, at(), worker("b", 1, 2))
		v := settles(t, a, "a", "b")
		require.NoError(t, membership.Remove(bounded(t), at(), "train", "b"))
		end := ended(t, v.Context(t.Context()))
		require.Equal(t, []int{1}, end.Lost)
		require.Empty(t, end.Left)
		require.ErrorIs(t, end, pgroup.ErrLost)
		settles(t, a, "a")
		for {
			_, err := b.Next(bounded(t))
			if err != nil {
				require.ErrorIs(t, err, membership.ErrEvicted)
				break
			}
		}
		require.NoError(t, b.Close())

		b = join(t, at(), worker("b", 1, 2))
		v = settles(t, a, "a", "b")
		require.NoError(t, b.Leave(bounded(t)))
		require.NoError(t, membership.Remove(bounded(t), at(), "train", "b"))
		require.Equal(t, []int{1}, ended(t, v.Context(t.Context())).Left)
	})
}

// TestFinish checks that a worker which was not there when the others finished learns of it, and
// that the next job of this name is another one.
func TestFinish(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 1, 2)), join(t, at(), worker("b", 1, 2))
		va, vb := settles(t, a, "a", "b"), settles(t, b, "a", "b")
		require.NoError(t, b.Close()) // cut off
		finished, err := va.Finished(bounded(t))
		require.NoError(t, err)
		require.False(t, finished)
		back := join(t, at(), worker("b", 1, 2))
		waits := make(chan error, 1)
		go func() { waits <- back.WaitFinished(bounded(t), vb) }()
		for range 2 {
			require.NoError(t, va.Finish(bounded(t)))
		}
		require.NoError(t, <-waits)
		v := settles(t, back, "a", "b")
		finished, err = v.Finished(bounded(t))
		require.NoError(t, err)
		require.True(t, finished)

		require.NoError(t, back.Leave(bounded(t)))
		require.NoError(t, a.Leave(bounded(t)))
		a = join(t, at(), worker("a", 1, 2))
		finished, err = next(t, a, 0, "a").Finished(bounded(t))
		require.NoError(t, err)
		require.False(t, finished)
	})
}

// TestViewIsSmall checks that a view, which each worker gets at each change, has few bytes for each
// worker besides its ID and address.
func TestViewIsSmall(t *testing.T) {
	const workers = 16
	s := store.New(new(store.Memory))
	defer s.Close()
	first := join(t, s, worker(strings.Repeat("é", 40), workers, workers))
	for i := range workers - 1 {
		join(t, s, worker(fmt.Sprint("w", i+1), workers, workers))
	}
	v, err := first.Next(bounded(t))
	require.NoError(t, err)
	named := 0
	for _, w := range v.Workers {
		named += len(w.ID) + len(w.Addr)
	}
	b, err := s.Get(t.Context(), "membership/train/roster/view")
	require.NoError(t, err)
	require.Less(t, len(b)-named, 45*workers)
	require.Equal(t, "view 1 of size 16: joined "+strings.Repeat("é", 32)+"…, w1, w2, w3, w4, w5, w6, w7 and 8 more", v.Change.String())
	require.NoError(t, s.Set(t.Context(), "membership/train/roster/view", []byte(`{"Workers":["w0"]}`), nil))
	_, err = membership.Join(t.Context(), s, worker("late", workers, workers))
	require.ErrorContains(t, err, "was not written by this package: a worker is incomplete")
}

// TestFinishOfALaunch checks that a worker which starts when the others of its launch have finished and left
// learns of it, and that one of another launch, or of none, begins anew.
func TestFinishOfALaunch(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		of := func(id, launch string) membership.Config {
			c := worker(id, 1, 2)
			c.Launch = launch
			return c
		}
		finished := func(want bool) {
			t.Helper()
			done, err := membership.Finished(bounded(t), at(), "train", "first")
			require.NoError(t, err)
			require.Equal(t, want, done)
		}
		for _, launch := range []string{"", "first", "second"} {
			finished(launch == "second")
			a := join(t, at(), of("a", launch))
			v := next(t, a, 0, "a")
			finished(launch == "second")
			require.NoError(t, v.Finish(bounded(t)))
			if launch == "first" { // the view may end with its last worker before a late one is in it
				_, err := membership.Join(bounded(t), at(), of("late", launch))
				require.ErrorIs(t, err, membership.ErrFinished)
			}
			require.NoError(t, a.Leave(bounded(t)))
		}
		_, err := membership.Join(bounded(t), at(), of("b", "first"))
		require.ErrorIs(t, err, membership.ErrFinished)
		require.ErrorContains(t, err, "finished before this worker started")
		b := join(t, at(), of("b", "third"))
		next(t, b, 0, "b")
		require.NoError(t, b.Leave(bounded(t)))
	})
}
