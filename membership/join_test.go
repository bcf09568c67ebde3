package membership_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

func TestManyWithOneID(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		const many = 10
		joined := make(chan *membership.Member, many)
		for range many {
			s := at()
			go func() {
				m, err := membership.Join(bounded(t), s, worker("a", 1, 0))
				if err != nil {
					assert.ErrorIs(t, err, membership.ErrDuplicate)
				}
				joined <- m
			}()
		}
		var in []*membership.Member
		for range many {
			if m := <-joined; m != nil {
				in = append(in, m)
			}
		}
		require.Len(t, in, 1)
		settles(t, in[0], "a")
		require.NoError(t, in[0].Close())
	})
}

func TestBadConfig(t *testing.T) {
	s := testcluster.Store(t)()
	for text, change := range map[string]func(*membership.Config){
		"Config.Job is empty":                             func(c *membership.Config) { c.Job = "" },
		"Config.ID is empty":                              func(c *membership.Config) { c.ID = "" },
		"Config.ID is not UTF-8":                          func(c *membership.Config) { c.ID = "\xff" },
		"Config.Addr has 257 bytes, the limit is 256":     func(c *membership.Config) { c.Addr = strings.Repeat("a", 257) },
		"Config.Settings has 257 bytes, the limit is 256": func(c *membership.Config) { c.Settings = strings.Repeat("a", 257) },
		"Config.Min is 0: a view has at least one worker": func(c *membership.Config) { c.Min = 0 },
		"Config.Max is 1, less than Config.Min, 2":        func(c *membership.Config) { c.Max = 1 },
		"Config.Settle is -1s":                            func(c *membership.Config) { c.Settle = -time.Second },
		"Config.TTL is -1s":                               func(c *membership.Config) { c.TTL = -time.Second },
	} {
		c := worker("a", 2, 0)
		change(&c)
		_, err := membership.Join(t.Context(), s, c)
		require.ErrorIs(t, err, membership.ErrInvalid)
		require.ErrorContains(t, err, text)
		e, ok := errors.AsType[*membership.Error](err)
		require.True(t, ok)
		require.Equal(t, [...]any{"join", c.Job, c.ID, -1}, [...]any{e.Op, e.Job, e.ID, e.Rank})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := membership.Join(ctx, s, worker("a", 1, 0))
	require.ErrorIs(t, err, context.Canceled)
}

func TestWorkersWithDifferentSizes(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		a := join(t, at(), worker("a", 1, 3))
		v := next(t, a, 0, "a")
		_, err := membership.Join(bounded(t), at(), worker("b", 2, 3))
		require.ErrorIs(t, err, membership.ErrMismatch)
		require.ErrorContains(t, err, `Min is 2 and Max is 3 here, and 1 and 3 on worker "a" at 10.0.0.1:a`)
		other := worker("d", 1, 3)
		other.Settings = "--batch 32"
		_, err = membership.Join(bounded(t), at(), other)
		require.ErrorIs(t, err, membership.ErrMismatch)
		require.ErrorContains(t, err, `ranks disagree: "--batch 32" here, and "" on worker "a" at 10.0.0.1:a`)
		join(t, at(), worker("c", 1, 3))
		require.Equal(t, []string{"a", "c"}, idsOf(settles(t, a, "a", "c").Workers))
		require.Equal(t, []membership.Worker{{ID: "c", Addr: "10.0.0.1:c"}}, ended(t, v.Context(t.Context())).Joined, "b and d were in no view")
	})
}

func TestNamesAreEscaped(t *testing.T) {
	everywhere(t, func(t *testing.T, at func() *store.Store) {
		jobs := []string{"a", "a/roster", "a%2Froster", "../a", " ", "日本", "a\x00b"}
		var ms []*membership.Member
		for _, job := range jobs {
			c := worker("w/1", 1, 0) // ids are unique within a job only
			c.Job = job
			ms = append(ms, join(t, at(), c))
		}
		for i, m := range ms {
			v := next(t, m, 0, "w/1")
			require.NotContains(t, v.Config().Name, "/", "it would be a Sub of another job's group")
			require.EqualValues(t, 1, v.Generation)
			c, err := m.StartCheckpoint(bounded(t), 1, "/ckpt/"+jobs[i])
			require.NoError(t, err)
			c, err = m.Checkpoint(bounded(t), c.ID)
			require.NoError(t, err)
			require.Equal(t, "/ckpt/"+jobs[i], c.Path)
			complete, err := c.End(bounded(t))
			require.NoError(t, err)
			require.True(t, complete)
		}
		for e, err := range at().List(bounded(t), "") {
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(e.Key, "membership/"), e.Key)
		}
	})
}

// TestNextSaysWhatIsMissing checks that the error of a Next that waits says what is missing, and
// that Next never waits longer than its context.
func TestNextSaysWhatIsMissing(t *testing.T) {
	simulated(t, func(t *testing.T, memory *store.Memory) {
		s := store.New(memory)
		b := join(t, s, worker("b", 2, 0))
		start := time.Now()
		said := nothing(t, b, 3*time.Second)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, `membership: next of worker "b" in job "train": context deadline exceeded: 1 of 2 workers are registered: "b" at 10.0.0.1:b`, said)

		a := join(t, s, worker("a", 2, 0))
		next(t, a, 1, "b", "a")
		next(t, b, 0, "b", "a")
		require.Contains(t, nothing(t, a, time.Second), `next of worker "a" (rank 1) in job "train": context deadline exceeded: view 1 has not ended`)

		standby := join(t, s, worker("c", 2, 0))
		require.Contains(t, nothing(t, standby, time.Second), "this worker is a standby: view 1 has its 2 workers")

		cause := errors.New("the user is tired")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		_, err := a.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)
		for _, m := range []*membership.Member{a, b, standby} {
			require.NoError(t, m.Close())
		}
	})
}
