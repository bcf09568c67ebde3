package membership_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// group forms a group with the other workers of v.
func group(t *testing.T, v membership.View) *pgroup.Group {
	t.Helper()
	g, err := pgroup.Create(bounded(t), v.Config())
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	require.Equal(t, v.Rank, g.Rank())
	require.Equal(t, v.Size(), g.Size())
	return g
}

// TestSilentWorkerIsEvicted checks that a worker which is silent for 100 ms is evicted, as by
// Zerfoo's coordinator, in the simulated time of a bubble.
func TestSilentWorkerIsEvicted(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		way := testcluster.NewLine(memory)
		a := join(t, store.New(memory), worker("a", 1, 3))
		next(t, a, 0, "a")
		c := worker("b", 1, 3)
		c.TTL = 100 * time.Millisecond
		b := join(t, store.New(way), c)
		v, of := next(t, a, 0, "a", "b"), next(t, b, 1, "a", "b")
		time.Sleep(time.Hour)
		require.NoError(t, v.Context(t.Context()).Err(), "heartbeats go by themselves")

		start := time.Now()
		way.Freeze()
		why := ended(t, v.Context(t.Context()))
		require.LessOrEqual(t, time.Since(start), 100*time.Millisecond)
		require.Greater(t, time.Since(start), 60*time.Millisecond)
		require.Equal(t, []int{1}, why.Lost)
		require.ErrorIs(t, why, pgroup.ErrLost)
		require.NotErrorIs(t, why, pgroup.ErrLeft)
		require.EqualError(t, why, `membership: view 2 of job "train" ended on rank 0 of 2, worker "a": lost rank 1, worker "b" at 10.0.0.1:b`)
		require.EqualValues(t, 3, next(t, a, 0, "a").Generation) // without a call that asks for it

		require.NoError(t, of.Context(t.Context()).Err(), "b has not received it")
		way.Thaw()
		_, err := b.Next(bounded(t))
		require.ErrorIs(t, err, membership.ErrEvicted)
		require.ErrorContains(t, err, `next of worker "b" (rank 1) in job "train": evicted`)
		why = ended(t, of.Context(t.Context()))
		require.ErrorIs(t, why, membership.ErrEvicted)
		require.True(t, of.Over(why))
		_, err = b.StartCheckpoint(bounded(t), 1, "")
		require.ErrorIs(t, err, membership.ErrEvicted)
		require.ErrorIs(t, b.Leave(bounded(t)), membership.ErrEvicted)

		again := join(t, store.New(way), c)
		next(t, again, 1, "a", "b")
		require.EqualValues(t, 4, next(t, a, 0, "a", "b").Generation)
	})
}

// TestWorkerWithoutStoreGivesUp checks that a worker which no longer gets an answer from its store
// ends by itself.
func TestWorkerWithoutStoreGivesUp(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		way := testcluster.NewLine(memory)
		a := join(t, store.New(way), worker("a", 1, 0))
		v := next(t, a, 0, "a")
		way.Freeze()
		start := time.Now()
		_, err := a.Next(t.Context())
		require.ErrorIs(t, err, membership.ErrEvicted)
		require.ErrorIs(t, err, store.ErrTimeout)
		require.Less(t, time.Since(start), 30*time.Second)
		require.ErrorIs(t, ended(t, v.Context(t.Context())), membership.ErrEvicted)
		start = time.Now()
		require.NoError(t, a.Close())
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		way.Thaw()
	})
}

func TestElastic(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		s := store.New(memory)
		require.NoError(t, s.Set(t.Context(), "membership/train/history", []byte("not JSON"), nil), "it is replaced")
		with := func(id string) *membership.Member {
			c := worker(id, 2, 4)
			c.Settle = 10 * time.Second
			return join(t, s, c)
		}
		a := with("a")
		nothing(t, a, time.Minute)
		start := time.Now()
		b := with("b")
		time.Sleep(6 * time.Second)
		c := with("c")
		next(t, c, 2, "a", "b", "c")
		require.Equal(t, 10*time.Second, time.Since(start), "since Min was reached, not since the last one came")
		next(t, a, 0, "a", "b", "c")
		next(t, b, 1, "a", "b", "c")

		start = time.Now()
		d := with("d")
		next(t, d, 3, "a", "b", "c", "d")
		require.Zero(t, time.Since(start), "there are Max: no rank to wait for")
		view := next(t, a, 0, "a", "b", "c", "d")
		e, f := with("e"), with("f")
		nothing(t, e, time.Minute) // a standby
		nothing(t, a, time.Minute)

		start = time.Now()
		require.NoError(t, b.Leave(bounded(t)))
		why := ended(t, view.Context(t.Context()))
		require.Equal(t, []int{1}, why.Left)
		require.ErrorIs(t, why, pgroup.ErrLeft)
		require.EqualError(t, why, `membership: view 2 of job "train" ended on rank 0 of 4, worker "a": left by rank 1, worker "b" at 10.0.0.1:b`)
		settles(t, a, "a", "c", "d", "e")
		next(t, e, 3, "a", "c", "d", "e")
		require.Zero(t, time.Since(start))
		nothing(t, f, time.Minute)

		start = time.Now()
		require.NoError(t, a.Leave(bounded(t))) // the leader
		settles(t, c, "c", "d", "e", "f")
		require.NoError(t, c.Close())
		require.NoError(t, d.Leave(bounded(t)))
		settles(t, f, "e", "f")
		require.Equal(t, 10*time.Second, time.Since(start), "there is room for more")
		require.NoError(t, e.Leave(bounded(t)))
		nothing(t, f, time.Hour/2)
		now, err := membership.ReadStatus(t.Context(), s, "train")
		require.NoError(t, err)
		now.History = membership.History{}
		require.Equal(t, &membership.Status{Generation: 5, Workers: 2, Gone: 1, Registered: 1, Min: 2}, now)
		g := with("g")
		require.Equal(t, "view 6 of size 2: left e; joined g (no view for 1810 s)", next(t, f, 0, "f", "g").Change.String())
		require.Equal(t, "view 6 of size 2: lost e; joined g (no view for 10 s)", next(t, g, 1, "f", "g").Change.String(), "since it came")
		synctest.Wait()
		changed(t, s, 1820, "1 of size 3: joined a, b, c", "2 of size 4: joined d", "3 of size 4: left b; joined e", "4 of size 4: left a; joined f",
			"5 of size 2: lost c; left d (no view for 10 s)", "6 of size 2: left e; joined g (no view for 1810 s)")
	})
}

// changed checks the history of the job in s.
func changed(t *testing.T, s *store.Store, seconds float64, want ...string) {
	t.Helper()
	now, err := membership.ReadStatus(t.Context(), s, "train")
	require.NoError(t, err)
	var got []string
	for _, c := range now.History.Newest {
		got = append(got, strings.TrimPrefix(c.String(), "view "))
	}
	require.Equal(t, want, got)
	require.InDelta(t, seconds, now.History.Seconds, 0.5)
	last := now.History.Newest[len(got)-1]
	require.Equal(t, []uint64{last.Generation, last.Generation}, []uint64{uint64(now.History.Changes), now.Generation})
	require.WithinRange(t, time.UnixMilli(last.Time), time.Now().Add(-time.Hour), time.Now())
}

// TestForeignKeys checks that keys of other writers are reported, and do no harm after they are
// deleted.
func TestForeignKeys(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		s := store.New(memory)
		a := join(t, s, worker("a", 1, 2))
		next(t, a, 0, "a")
		for _, key := range []string{"membership/train/roster/worker/x", "membership/train/roster/view/x", "membership/train/roster/x"} {
			require.NoError(t, s.Set(t.Context(), key, []byte("not JSON"), nil))
			_, err := membership.Join(t.Context(), s, worker("b", 1, 2))
			require.ErrorContains(t, err, `key "`+key+`" was not written by this package`)
			require.Contains(t, nothing(t, a, time.Minute), key)
			_, err = s.Delete(t.Context(), key)
			require.NoError(t, err)
		}
		b := join(t, s, worker("b", 1, 2))
		next(t, b, 1, "a", "b")
		next(t, a, 0, "a", "b")
	})
}

// TestStoreThatIsFull checks that a store without space for a view is reported too.
func TestStoreThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(&store.Memory{Limits: store.Limits{Keys: 2}})
		t.Cleanup(func() { _ = s.Close() })
		a := join(t, s, worker("a", 2, 0))
		join(t, s, worker("b", 2, 0))
		require.Contains(t, nothing(t, a, time.Minute), "store full")
		_, err := membership.Join(t.Context(), s, worker("c", 2, 0))
		require.ErrorIs(t, err, store.ErrFull)
	})
}

// TestStoreThatHangs checks that a call never takes much longer than its context, whatever hangs.
func TestStoreThatHangs(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		way := testcluster.NewLine(memory)
		s := store.New(way)
		within := func(f func(ctx context.Context) error) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			require.ErrorIs(t, f(ctx), context.DeadlineExceeded)
			require.LessOrEqual(t, time.Since(start), time.Second+store.ResultGrace)
		}
		for _, op := range []wire.Op{wire.OpGrant, wire.OpSet, wire.OpList} {
			way.FreezeAt(op)
			within(func(ctx context.Context) error {
				_, err := membership.Join(ctx, s, worker("a", 1, 0))
				return err
			})
			way.Thaw()
			time.Sleep(time.Minute) // what the call has written expires
		}
		a := join(t, s, worker("a", 1, 0))
		next(t, a, 0, "a")
		c, err := a.StartCheckpoint(t.Context(), 1, "")
		require.NoError(t, err)
		way.Freeze()
		within(func(ctx context.Context) error { _, err := a.StartCheckpoint(ctx, 1, ""); return err })
		within(func(ctx context.Context) error { _, err := a.Checkpoint(ctx, c.ID); return err })
		within(func(ctx context.Context) error { _, err := c.End(ctx); return err })
		within(func(ctx context.Context) error { _, err := c.Missing(ctx); return err })
		within(func(ctx context.Context) error { _, err := a.Next(ctx); return err })
		within(func(ctx context.Context) error { return c.Wait(ctx) })
		within(func(ctx context.Context) error { return a.Leave(ctx) })
		way.Thaw()
		time.Sleep(time.Minute)
		next(t, join(t, s, worker("a", 1, 0)), 0, "a")
	})
}

func TestStoreThatIsClosed(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		s := store.Prefix(at(), "jobs/")
		a := join(t, s, worker("a", 1, 0))
		v := next(t, a, 0, "a")
		require.NoError(t, s.Close())
		_, err := a.Next(bounded(t))
		require.ErrorIs(t, err, membership.ErrEvicted)
		require.ErrorIs(t, err, store.ErrClosed)
		require.ErrorIs(t, ended(t, v.Context(t.Context())), membership.ErrEvicted)
		require.ErrorIs(t, a.Leave(bounded(t)), membership.ErrEvicted)
	})
}

func TestCloseAndLeave(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 1, 2)), join(t, at(), worker("b", 1, 2))
		v := settles(t, a, "a", "b")
		of := settles(t, b, "a", "b")
		waits := make(chan error, 1)
		go func() {
			_, err := b.Next(t.Context())
			waits <- err
		}()
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
		require.NoError(t, b.Leave(bounded(t)))
		err := <-waits
		require.ErrorIs(t, err, membership.ErrClosed)
		require.NotErrorIs(t, err, membership.ErrEvicted)
		why := ended(t, of.Context(t.Context()))
		require.ErrorIs(t, why, membership.ErrClosed)
		require.ErrorContains(t, why, `view`)
		require.Equal(t, []int{1}, ended(t, v.Context(t.Context())).Lost)
		settles(t, a, "a")

		require.NoError(t, a.Leave(bounded(t)))
		require.NoError(t, a.Leave(bounded(t)))
		require.NoError(t, a.Close())
		_, err = a.Next(t.Context())
		require.ErrorIs(t, err, membership.ErrClosed)
		for e, err := range at().List(bounded(t), "") {
			require.NoError(t, err)
			t.Errorf("%s is left", e.Key)
		}
	})
}

// TestKeysOfADeadJobGo checks that the keys of a job whose workers have all died expire, and that
// those of a running job do not.
func TestKeysOfADeadJobGo(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		s := store.New(memory)
		a := join(t, s, worker("a", 1, 3))
		next(t, a, 0, "a")
		time.Sleep(100 * time.Hour)
		b := join(t, s, worker("b", 1, 3))
		require.EqualValues(t, 2, next(t, b, 1, "a", "b").Generation, "the job is the same")
		require.NoError(t, a.Close())
		require.EqualValues(t, 3, next(t, b, 0, "b").Generation)
		synctest.Wait()
		require.Equal(t, 3, memory.Keys(), "a worker, a view and its history")
		_, err := b.StartCheckpoint(bounded(t), 1, "/ckpt")
		require.NoError(t, err)
		require.NoError(t, b.Close())
		c := join(t, s, worker("c", 1, 3))
		require.EqualValues(t, 4, next(t, c, 0, "c").Generation)
		synctest.Wait()
		changed(t, s, 0, "1 of size 1: joined a", "2 of size 2: joined b", "3 of size 1: lost a", "4 of size 1: lost b; joined c")
		require.NoError(t, c.Close())
		time.Sleep(25 * time.Hour)
		require.Zero(t, memory.Keys())
		require.EqualValues(t, 1, next(t, join(t, s, worker("d", 1, 3)), 0, "d").Generation)
	})
}

func TestStoreThatIsRestarted(t *testing.T) {
	dir := t.TempDir()
	durable := func() *store.Server { return &store.Server{Engine: &store.Memory{Dir: dir, ReconnectTimeout: soon}} }
	l := testcluster.Listen(t)
	stop := testcluster.ServeAt(t, durable(), l)
	front := testcluster.NewProxy(t, l.Addr().String())
	at := func() *store.Store { return dial(t, front.Addr()) }
	a, b := join(t, at(), worker("a", 2, 3)), join(t, at(), worker("b", 2, 3))
	v := next(t, a, 0, "a", "b")
	next(t, b, 1, "a", "b")
	stop()
	front.Target(testcluster.Serve(t, durable()))
	join(t, at(), worker("c", 2, 3))
	next(t, a, 0, "a", "b", "c")
	require.EqualValues(t, 2, next(t, b, 1, "a", "b", "c").Generation)
	require.Empty(t, ended(t, v.Context(t.Context())).Lost)
}

// TestStoreThatForgets checks that a store which loses its state evicts all workers, and that the
// job starts anew.
func TestStoreThatForgets(t *testing.T) {
	serve := func() string { return testcluster.Serve(t, &store.Server{Engine: new(store.Memory)}) }
	front := testcluster.NewProxy(t, serve())
	s := dial(t, front.Addr())
	a := join(t, s, worker("a", 1, 0))
	v := next(t, a, 0, "a")
	front.Target(serve())
	front.Cut(testcluster.RST)
	_, err := a.Next(bounded(t))
	require.ErrorIs(t, err, membership.ErrEvicted)
	require.True(t, v.Over(ended(t, v.Context(t.Context()))))
	require.EqualValues(t, 1, next(t, join(t, s, worker("a", 1, 0)), 0, "a").Generation)
}
