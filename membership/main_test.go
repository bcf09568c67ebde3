package membership_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// soon is the time limit of every expected event, on a busy machine too.
const soon = 30 * time.Second

// places are the stores that workers use: each call returns the store of another worker.
var places = map[string]func(t *testing.T) func() *store.Store{
	"store": func(t *testing.T) func() *store.Store { return testcluster.Store(t) },
	"tcp": func(t *testing.T) func() *store.Store {
		addr := testcluster.Serve(t, &store.Server{Engine: new(store.Memory)})
		return func() *store.Store { return dial(t, addr) }
	},
}

func everywhere(t *testing.T, f func(t *testing.T, at func() *store.Store)) {
	for name, place := range places {
		t.Run(name, func(t *testing.T) { f(t, place(t)) })
	}
}

// simulated runs f in a bubble of synthetic time, with a store that ends with the test.
func simulated(t *testing.T, f func(t *testing.T, memory *store.Memory)) {
	synctest.Test(t, func(t *testing.T) {
		memory := new(store.Memory)
		t.Cleanup(func() { _ = memory.Close() })
		f(t, memory)
	})
}

func dial(t *testing.T, addr string) *store.Store { return testcluster.Dial(t, addr, nil) }

// bounded returns the test's context with a timeout.
func bounded(t *testing.T) context.Context { return testcluster.Within(t, soon) }

// worker returns the Config of the job that most tests use.
func worker(id string, least, most int) membership.Config {
	return membership.Config{Job: "train", ID: id, Addr: "10.0.0.1:" + id, Min: least, Max: most}
}

// join returns a member that is closed when the test ends.
func join(t *testing.T, s *store.Store, c membership.Config) *membership.Member {
	t.Helper()
	m, err := membership.Join(bounded(t), s, c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// next returns the next view of m, and checks that it has these workers, and m at this rank.
func next(t *testing.T, m *membership.Member, rank int, ids ...string) membership.View {
	t.Helper()
	v, err := m.Next(bounded(t))
	require.NoError(t, err)
	require.Equal(t, ids, idsOf(v.Workers))
	require.Equal(t, rank, v.Rank)
	require.Equal(t, len(ids), v.Size())
	return v
}

// settles returns a view of these workers; m may get others before.
func settles(t *testing.T, m *membership.Member, ids ...string) membership.View {
	t.Helper()
	for {
		v, err := m.Next(bounded(t))
		require.NoError(t, err, ids)
		if fmt.Sprint(idsOf(v.Workers)) == fmt.Sprint(ids) {
			return v
		}
	}
}

func idsOf(ws []membership.Worker) (ids []string) {
	for _, w := range ws {
		ids = append(ids, w.ID)
	}
	return ids
}

// ended waits for the end of ctx, and returns its cause.
func ended(t *testing.T, ctx context.Context) *membership.ViewError {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-bounded(t).Done():
		t.Fatal("the view has not ended")
	}
	why, ok := errors.AsType[*membership.ViewError](context.Cause(ctx))
	require.True(t, ok, "%v", context.Cause(ctx))
	require.ErrorIs(t, why, membership.ErrOver)
	return why
}

// nothing checks that m gets no view for a while, and returns the text of the error.
func nothing(t *testing.T, m *membership.Member, for_ time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), for_)
	defer cancel()
	v, err := m.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "%v", v)
	return err.Error()
}
