package collective_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/trace"
)

// TestInvalid passes invalid arguments: the rank that passes them gets an error at once, and the
// Comm remains usable.
func TestInvalid(t *testing.T) {
	way{host: apart}.run(t, 3, func(r *rank) {
		x := make([]float32, 7)
		for _, root := range []int{-1, 3, 100} {
			assert.ErrorIs(r, collective.Broadcast(r.ctx, r.c, root, x), pgroup.ErrInvalid)
			assert.ErrorContains(r, collective.Reduce(r.ctx, r.c, root, collective.Sum, x), "in a group of 3")
			assert.ErrorIs(r, collective.Send(r.ctx, r.c, root, x), pgroup.ErrInvalid)
			assert.ErrorIs(r, collective.Recv(r.ctx, r.c, root, x), pgroup.ErrInvalid)
		}
		assert.ErrorIs(r, collective.Send(r.ctx, r.c, r.me(), x), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.AllReduce(r.ctx, r.c, collective.Op(77), x), pgroup.ErrInvalid)
		assert.ErrorContains(r, collective.AllToAll(r.ctx, r.c, x, x), "7 elements cannot be parted among 3 ranks")
		assert.ErrorIs(r, collective.AllToAll(r.ctx, r.c, x[:6], x[:3]), pgroup.ErrInvalid)
		assert.ErrorContains(r, collective.AllGather(r.ctx, r.c, x, x[:2]), "7 elements in all are not 3 times 2")
		assert.ErrorIs(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, x[:2], x), pgroup.ErrInvalid)
		shared := collective.AllReduceAll(r.ctx, r.c, collective.Sum, [][]float32{x[5:], {1}, x[:6]})
		assert.ErrorIs(r, shared, pgroup.ErrInvalid)
		assert.ErrorContains(r, shared, "slices 0 and 2 share memory")
		assert.NoError(r, collective.AllReduceAll(r.ctx, r.c, collective.Sum, [][]float32{x[5:], {1}, x[:5]}))
		assert.NoError(r, r.reduces(7))
		_, err := collective.Open(r.ctx, r.g, &collective.Options{Algorithm: 77})
		assert.ErrorIs(r, err, pgroup.ErrInvalid)
	})
}

// TestOverlap passes slices that share memory in a way that would overwrite data which is still to
// be sent.
func TestOverlap(t *testing.T) {
	way{host: apart}.run(t, 2, func(r *rank) {
		x := []int32{1, 2, 3, 4}
		next := x[2*(1-r.me()):][:2] // the other rank's part
		assert.ErrorIs(r, collective.AllToAll(r.ctx, r.c, x, x), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.AllToAll(r.ctx, r.c, x[:2], x[1:3]), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, next, x), pgroup.ErrInvalid)
		assert.ErrorIs(r, collective.AllGather(r.ctx, r.c, x, next), pgroup.ErrInvalid)
		assert.NoError(r, collective.AllToAll(r.ctx, r.c, x[:2], x[2:]))
		mine := x[2*r.me():][:2]
		assert.NoError(r, collective.ReduceScatter(r.ctx, r.c, collective.Sum, mine, x))
		assert.NoError(r, collective.AllGather(r.ctx, r.c, x, mine))
		assert.NoError(r, r.c.Barrier(r.ctx))
	})
}

// TestDeadline has a rank that does not call the verb: the others get an error at their deadline
// that names it.
func TestDeadline(t *testing.T) {
	waiting(t, 3, func(t *testing.T, w way, n int) {
		var others sync.WaitGroup
		others.Add(n - 1)
		w.run(t, n, func(r *rank) {
			r.allReduce(10)
			if r.me() == 1 {
				others.Wait()
				assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrTimeout)
				return
			}
			defer others.Done()
			err := collective.AllReduce(testcluster.Within(r, 2*time.Second), r.c, collective.Sum, make([]float32, 1000))
			assert.ErrorIs(r, err, pgroup.ErrTimeout)
			assert.Equal(r, []int{1}, r.rankError(err).Missing, "%v", err)
		})
	})
}

// TestDeadlineHasPassed checks the error of a verb that did not begin, since its deadline had
// passed: it has no duration.
func TestDeadlineHasPassed(t *testing.T) {
	way{host: apart}.run(t, 2, func(r *rank) {
		err := r.c.Barrier(testcluster.Within(r, -time.Second))
		assert.ErrorIs(r, err, pgroup.ErrTimeout)
		assert.NotContains(r, err.Error(), "after")
	})
}

// TestSlicesAreTheCallersAfterAnError writes to a slice as soon as a verb has failed, at random
// moments: the race detector reports any later use by other goroutines.
func TestSlicesAreTheCallersAfterAnError(t *testing.T) {
	over(t, []int{4}, func(t *testing.T, w way, n int) {
		for round := range 5 {
			w.run(t, n, func(r *rank) {
				x := make([]float32, 200_000)
				xs := [][]float32{x[:1000], x[1000:90_000], x[90_000:]}
				ctx, cancel := context.WithCancel(r.ctx)
				defer cancel()
				if r.me() == round%n {
					time.AfterFunc(time.Duration(round)*time.Millisecond, cancel)
				}
				for {
					err := collective.AllReduce(ctx, r.c, collective.Sum, x)
					if err == nil {
						err = collective.AllReduceAll(ctx, r.c, collective.Sum, xs)
					}
					if err != nil {
						assert.ErrorIs(r, err, pgroup.ErrCancelled)
						clear(x)
						return
					}
				}
			})
		}
	})
}

// TestOpenAgain opens a new Comm on the same group after a verb has failed without a failed rank.
func TestOpenAgain(t *testing.T) {
	everywhere(t, []int{3}, func(r *rank, _ int) {
		r.allReduce(100)
		assert.ErrorIs(r, collective.AllReduce(r.ctx, r.c, collective.Sum, make([]int32, r.me())), pgroup.ErrMismatch)
		require.NoError(r, r.c.Close())
		c, err := collective.Open(r.ctx, r.g, r.options())
		require.NoError(r, err)
		defer c.Close()
		assert.Greater(r, c.Group().Generation(), r.c.Group().Generation())
		again := &rank{r.T, r.way, r.ctx, r.g, c}
		assert.NoError(r, again.reduces(100))
		assert.NoError(r, c.Barrier(r.ctx))
	})
}

// TestBusy sends two messages to one rank at the same time.
func TestBusy(t *testing.T) {
	way{host: apart}.run(t, 2, func(r *rank) {
		if r.me() == 0 {
			x := make([]byte, 64<<20) // more than connections hold
			var ends [2]error
			var both sync.WaitGroup
			for i := range ends {
				both.Go(func() { ends[i] = collective.Send(r.ctx, r.c, 1, x) })
			}
			both.Wait()
			busy := errors.Join(ends[:]...)
			assert.ErrorIs(r, busy, pgroup.ErrBusy)
			assert.True(r, ends[0] == nil || ends[1] == nil)
		} else {
			<-time.After(100 * time.Millisecond) // for both to begin
			assert.NoError(r, collective.Recv(r.ctx, r.c, 0, make([]byte, 64<<20)))
		}
		assert.NoError(r, r.c.Barrier(r.ctx))
	})
}

func TestTrace(t *testing.T) {
	sinks := make([]testcluster.Events, 2)
	w := way{host: apart, set: func(c *pgroup.Config) { c.Trace = &sinks[c.Rank] }}
	w.run(t, 2, func(r *rank) {
		r.allReduce(100)
		require.NoError(r, r.c.Barrier(r.ctx))
		require.NoError(r, r.g.Barrier(r.ctx))
		assert.Error(r, collective.AllReduce(r.ctx, r.c, collective.Sum, make([]int32, r.me())))
	})
	for rank := range sinks {
		events := slices.DeleteFunc(sinks[rank].All(), func(e trace.Event) bool { return !strings.HasPrefix(e.Op, "collective.") })
		require.Len(t, events, 3)
		e := events[0]
		assert.Equal(t, []any{"collective.allreduce", int64(400), rank, 2, uint64(1), nil}, []any{e.Op, e.Bytes, e.Rank, e.Size, e.Seq, e.Err})
		assert.Positive(t, e.Duration())
		assert.Equal(t, "collective.barrier", events[1].Op)
		assert.ErrorIs(t, events[2].Err, pgroup.ErrMismatch, fmt.Sprint(rank))
	}
}

// TestOneFailure has a rank that cancels before it has received the abort of another one: all ranks
// report the same failure.
func TestOneFailure(t *testing.T) {
	const n = 4
	w := between(t, n)
	w.store[1].Delay(20 * time.Millisecond)
	texts := make([]string, n)
	w.run(t, n, func(r *rank) {
		r.allReduce(10)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		switch r.me() {
		case 1:
			time.AfterFunc(20*time.Millisecond, cancel)
		case 2:
			time.AfterFunc(30*time.Millisecond, func() { r.c.Group().Abort(errors.New("no cheese")) })
		}
		var err error
		for err == nil {
			err = collective.AllReduce(ctx, r.c, collective.Sum, make([]float32, 10))
		}
		texts[r.me()] = r.rankError(err).Reason
	})
	for _, text := range texts {
		assert.Equal(t, texts[0], text)
	}
}

// TestFailureIsMalformed stores invalid data under the key of the failure.
func TestFailureIsMalformed(t *testing.T) {
	for _, rubbish := range []string{"null", "{}", "rubbish"} {
		way{host: apart}.run(t, 2, func(r *rank) {
			if r.me() == 1 {
				assert.NoError(r, r.c.Group().Store().Set(r.ctx, "fault", []byte(rubbish), nil))
				ctx, cancel := context.WithCancel(r.ctx)
				cancel()
				assert.ErrorContains(r, r.c.Barrier(ctx), "rank 1")
				return
			}
			assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrAborted)
		})
	}
}
