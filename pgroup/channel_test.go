package pgroup_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestChannelForEachStep uses more names than a group may have channels, each with collectives and
// messages, and one name repeatedly: ranks get the values of the same use, however far one of them
// is ahead.
func TestChannelForEachStep(t *testing.T) {
	steps := 5000
	if testing.Short() {
		steps = 500
	}
	ranks(t, 3, anyStore, func(t *testing.T, g *pgroup.Group) {
		for i := range steps {
			for _, name := range []string{fmt.Sprint("step ", i), "again"} {
				ch := g.Channel(name)
				next := (g.Rank() + 1) % 3
				require.NoError(t, pgroup.Send(t.Context(), ch, next, i))
				values, err := pgroup.AllGather(t.Context(), ch, i)
				require.NoError(t, err)
				require.Equal(t, []int{i, i, i}, values)
				got, err := pgroup.Recv[int](t.Context(), ch, (g.Rank()+2)%3)
				require.NoError(t, err)
				require.Equal(t, i, got)
				require.NoError(t, ch.Close())
			}
		}
		assert.NoError(t, g.Barrier(t.Context()))
	})
}

// TestCloseOfAChannelIsOfNothingElse closes one channel: calls on it are refused, those on others
// work.
func TestCloseOfAChannelIsOfNothingElse(t *testing.T) {
	ranks(t, 2, anyStore, func(t *testing.T, g *pgroup.Group) {
		x, y := g.Channel("x"), g.Channel("y")
		assert.NoError(t, x.Barrier(t.Context()))
		assert.Same(t, x, g.Channel("x"))
		assert.NoError(t, x.Close())
		assert.NoError(t, x.Close())
		for what, err := range map[string]error{
			"barrier": x.Barrier(t.Context()),
			"send":    pgroup.Send(t.Context(), x, 1-g.Rank(), 1),
		} {
			assert.ErrorIs(t, err, pgroup.ErrClosed, what)
			assert.ErrorContains(t, err, `channel "x"`, what)
		}
		_, err := pgroup.Recv[int](t.Context(), x, 1-g.Rank())
		assert.ErrorIs(t, err, pgroup.ErrClosed)
		assert.NoError(t, y.Barrier(t.Context()))
		assert.NoError(t, g.Barrier(t.Context()))
		assert.NotSame(t, x, g.Channel("x"))
		assert.Equal(t, fmt.Sprintf(`group "world" channel "x" rank %d of 2`, g.Rank()), fmt.Sprint(x))
		assert.Equal(t, fmt.Sprintf(`group "world" rank %d of 2`, g.Rank()), fmt.Sprint(g))
		assert.NoError(t, g.Channel("x").Shutdown(t.Context()))
		assert.NoError(t, g.Channel("never used").Close())
		assert.NoError(t, g.Barrier(t.Context()))
	})
}

// TestCloseOfAChannelCancelsItsCalls closes a channel with a barrier and a Recv under way: they end
// at once, and the barrier ends for all ranks, with an error that names the rank that closed.
func TestCloseOfAChannelCancelsItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ranks(t, 3, inMemory, func(t *testing.T, g *pgroup.Group) {
			x := g.Channel("x")
			switch g.Rank() {
			case 0:
				received := later(func() error { _, err := pgroup.Recv[int](t.Context(), x, 1); return err })
				time.AfterFunc(time.Second, func() { assert.NoError(t, x.Close()) })
				start := time.Now()
				assert.ErrorIs(t, x.Barrier(t.Context()), pgroup.ErrClosed)
				assert.ErrorIs(t, <-received, pgroup.ErrClosed)
				assert.LessOrEqual(t, time.Since(start), 1300*time.Millisecond)
			case 1:
				err := x.Barrier(t.Context())
				re, ok := errors.AsType[*pgroup.RankError](err)
				if assert.True(t, ok, "%v", err) {
					assert.ErrorIs(t, err, pgroup.ErrCancelled)
					assert.Equal(t, 0, re.By)
					assert.ErrorContains(t, err, "this rank has closed the channel")
				}
			}
		})
	})
}

// TestCloseOfAChannelThatTheStoreDoesNotLearn checks that the next use of the name continues the
// numbers of the last, so that the store and the rank agree on them.
func TestCloseOfAChannelThatTheStoreDoesNotLearn(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"an engine without the operation": {store.ErrUnsupported, nil},
		"a store that cannot be reached":  {&store.Error{Op: "close channel", Code: wire.CodeUnavailable, Err: store.ErrUnavailable}, store.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
				if req.Op == wire.OpCloseChannel {
					return c.err
				}
				return next.Do(ctx, req, rep)
			})
			ranks(t, 2, all(pgroup.Config{Store: s}), func(t *testing.T, g *pgroup.Group) {
				for i := range 3 {
					x := g.Channel("x")
					values, err := pgroup.AllGather(t.Context(), x, i)
					assert.NoError(t, err)
					assert.Equal(t, []int{i, i}, values)
					assert.NoError(t, pgroup.Send(t.Context(), x, g.Rank(), i))
					got, err := pgroup.Recv[int](t.Context(), x, g.Rank())
					assert.NoError(t, err)
					assert.Equal(t, i, got)
					assert.ErrorIs(t, x.Close(), c.want)
				}
			})
		})
	}
}

// TestCloseOfAChannelWaitsForTheStore closes channels of a store that is busy, as one that restarts is.
func TestCloseOfAChannelWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := hooked(t, func(ctx context.Context, req *wire.Request, rep *wire.Reply, next store.Engine) error {
			if req.Op == wire.OpCloseChannel {
				time.Sleep(9 * time.Second)
			}
			return next.Do(ctx, req, rep)
		})
		ranks(t, 2, all(pgroup.Config{Store: s}), func(t *testing.T, g *pgroup.Group) {
			for range 2 {
				x := g.Channel("x")
				assert.NoError(t, x.Barrier(t.Context()))
				assert.NoError(t, x.Close())
			}
		})
	})
}

// TestLargeMessagesAreAcknowledgedAtOnce lets one rank send more than its session may hold, to
// ranks that receive one message each.
func TestLargeMessagesAreAcknowledgedAtOnce(t *testing.T) {
	const n, size = 12, 4 << 20
	m := &store.Memory{Limits: store.Limits{Held: 64 << 20, HeldOf: 4 * size}}
	url := "muster://" + testcluster.Serve(t, &store.Server{Engine: m})
	ranks(t, n, all(pgroup.Config{Address: url}), func(t *testing.T, g *pgroup.Group) {
		for dst := 1; dst < n; dst++ {
			if g.Rank() == 0 {
				require.NoError(t, pgroup.Send(t.Context(), g, dst, []byte(strings.Repeat("x", size))))
			}
			if g.Rank() == dst {
				got, err := pgroup.Recv[[]byte](t.Context(), g, 0)
				assert.NoError(t, err)
				assert.Len(t, got, size)
			}
			assert.NoError(t, g.Barrier(t.Context()))
		}
	})
}
