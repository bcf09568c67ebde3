package membership_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

func TestCheckpoint(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		var ms []*membership.Member
		for _, id := range []string{"a", "b", "c"} {
			ms = append(ms, join(t, at(), worker(id, 3, 0)))
		}
		_, err := ms[0].StartCheckpoint(bounded(t), 7, "/ckpt/7")
		require.True(t, err == nil || membershipError(t, err).Rank == -1, "only with a view")
		for rank, m := range ms {
			next(t, m, rank, "a", "b", "c")
		}
		started, err := ms[0].StartCheckpoint(bounded(t), 7, "/ckpt/7")
		require.NoError(t, err)
		again, err := ms[0].StartCheckpoint(bounded(t), 7, "/ckpt/7")
		require.NoError(t, err)
		require.NotEqual(t, started.ID, again.ID)

		waits := make(chan error, 1)
		go func() { waits <- started.Wait(bounded(t)) }()
		for rank, m := range ms {
			c, err := m.Checkpoint(bounded(t), started.ID)
			require.NoError(t, err)
			require.Equal(t, [...]any{started.ID, int64(7), "/ckpt/7", uint64(1)}, [...]any{c.ID, c.Epoch, c.Path, c.Generation})
			require.Equal(t, []string{"a", "b", "c"}, idsOf(c.Workers))
			for range 2 { // ending it again has no effect
				complete, err := c.End(bounded(t))
				require.NoError(t, err)
				require.Equal(t, rank == 2, complete)
			}
			missing, err := started.Missing(bounded(t))
			require.NoError(t, err)
			require.Equal(t, []string{"a", "b", "c"}[rank+1:], append([]string{}, idsOf(missing)...))
		}
		require.NoError(t, <-waits)
		missing, err := again.Missing(bounded(t))
		require.NoError(t, err)
		require.Len(t, missing, 3, "each by itself")
	})
}

func membershipError(t *testing.T, err error) *membership.Error {
	t.Helper()
	e, ok := err.(*membership.Error) //nolint:errorlint // it is what is returned, not what is wrapped
	require.True(t, ok, "%v", err)
	return e
}

func TestCheckpointOfOthers(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a := join(t, at(), worker("a", 1, 1))
		_, err := a.Checkpoint(bounded(t), "no/such")
		require.ErrorIs(t, err, membership.ErrNotFound)
		require.ErrorContains(t, err, `membership: checkpoint "no/such" of worker "a" in job "train": `)

		standby := join(t, at(), worker("b", 1, 1))
		_, err = standby.StartCheckpoint(bounded(t), 1, "/ckpt")
		require.ErrorIs(t, err, membership.ErrNotInView)

		v := next(t, a, 0, "a")
		_, err = a.StartCheckpoint(bounded(t), 1, "\xff")
		require.ErrorIs(t, err, membership.ErrInvalid)
		c, err := a.StartCheckpoint(bounded(t), -1, "")
		require.NoError(t, err)
		require.EqualValues(t, -1, c.Epoch)

		of, err := standby.Checkpoint(bounded(t), c.ID)
		require.NoError(t, err)
		_, err = of.End(bounded(t))
		require.ErrorIs(t, err, membership.ErrNotInView)
		require.ErrorContains(t, err, `membership: end of checkpoint "`+c.ID+`" of worker "b" in job "train": not in the view: generation 1 has 1 workers, and this worker is not one of them`)
		missing, err := c.Missing(bounded(t))
		require.NoError(t, err)
		require.Equal(t, v.Workers, missing)

		require.NoError(t, a.Close())
		_, err = c.End(bounded(t))
		require.ErrorIs(t, err, membership.ErrClosed)
		next(t, standby, 0, "b")
		back := join(t, at(), worker("a", 1, 1))
		of, err = back.Checkpoint(bounded(t), c.ID)
		require.NoError(t, err)
		_, err = of.End(bounded(t))
		require.ErrorIs(t, err, membership.ErrNotInView, "who came back is another worker")
	})
}

// TestNobodyWaitsForTheLost checks that a checkpoint, and a group, whose worker has failed never
// complete, and that no worker has to wait for them.
func TestNobodyWaitsForTheLost(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 2, 0)), join(t, at(), worker("b", 2, 0))
		v := next(t, a, 0, "a", "b")
		c, err := a.StartCheckpoint(bounded(t), 3, "/ckpt/3")
		require.NoError(t, err)
		complete, err := c.End(bounded(t))
		require.NoError(t, err)
		require.False(t, complete)
		waits, creates := make(chan error, 1), make(chan error, 1)
		go func() { waits <- c.Wait(v.Context(bounded(t))) }()
		go func() {
			_, err := pgroup.Create(v.Context(bounded(t)), v.Config()) // b never comes
			creates <- err
		}()
		require.NoError(t, b.Close())
		err = <-waits
		require.ErrorIs(t, err, membership.ErrOver)
		require.ErrorIs(t, err, pgroup.ErrLost)
		require.True(t, v.Over(err))
		err = <-creates
		require.Error(t, err)
		require.True(t, v.Over(err), "%v", err)
		_, err = a.StartCheckpoint(bounded(t), 4, "/ckpt/4")
		require.ErrorIs(t, err, membership.ErrOver)
	})
}

// TestNewestCheckpoint checks the query with checkpoints that are incomplete, older, or of the same
// epoch; after the workers have left; and after the job has finished.
func TestNewestCheckpoint(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a, b := join(t, at(), worker("a", 2, 0)), join(t, at(), worker("b", 2, 0))
		next(t, a, 0, "a", "b")
		next(t, b, 1, "a", "b")
		newest := func(m *membership.Member) string {
			t.Helper()
			c, err := m.NewestCheckpoint(bounded(t))
			if err != nil {
				require.ErrorIs(t, err, membership.ErrNotFound)
				return ""
			}
			require.Equal(t, []string{"a", "b"}, idsOf(c.Workers))
			return c.Path
		}
		save := func(epoch int64, path string, ms ...*membership.Member) {
			t.Helper()
			c, err := a.StartCheckpoint(bounded(t), epoch, path)
			require.NoError(t, err)
			for _, m := range ms {
				of, err := m.Checkpoint(bounded(t), c.ID)
				require.NoError(t, err)
				_, err = of.End(bounded(t))
				require.NoError(t, err)
			}
		}
		require.Empty(t, newest(a))
		save(7, "7", a)
		require.Empty(t, newest(b), "b has not ended it")
		save(5, "5", a, b)
		require.Equal(t, "5", newest(b))
		save(9, "9", a, b)
		save(8, "8", a, b)
		save(10, "10", b)
		require.Equal(t, "9", newest(a))
		save(9, "9 again", b, a)
		require.Equal(t, "9 again", newest(a))

		leave := func() {
			t.Helper()
			require.NoError(t, b.Leave(bounded(t)))
			require.NoError(t, a.Leave(bounded(t)))
		}
		leave() // drained: it begins again with this checkpoint
		a, b = join(t, at(), worker("a", 2, 0)), join(t, at(), worker("b", 2, 0))
		require.Equal(t, "9 again", newest(a))
		require.NoError(t, next(t, a, 0, "a", "b").Finish(bounded(t)))
		leave()
		a, b = join(t, at(), worker("a", 2, 0)), join(t, at(), worker("b", 2, 0))
		require.Empty(t, newest(b), "the job has finished: another one begins")
	})
}
