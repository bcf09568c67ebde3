package etcdlog_test

import (
	"context"
	"errors"
	"io"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// TestReplacedLeader checks that a leader that another process has replaced acknowledges nothing,
// and answers no read, even if only the request itself makes it contact etcd.
func TestReplacedLeader(t *testing.T) {
	c, o := client(t, etcd(t)), &etcdlog.Options{Root: newRoot(), FailureTimeout: time.Hour}
	before := lead(t, c, o)
	s := store.New(before)
	require.NoError(t, s.Set(t.Context(), "key", []byte("old"), nil))
	_, err := c.Delete(t.Context(), o.Root+"leader")
	require.NoError(t, err)
	after := lead(t, c, o)
	require.NoError(t, store.New(after).Set(t.Context(), "key", []byte("new"), nil))
	_, err = s.Get(t.Context(), "key")
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, etcdlog.ErrReplaced.Error())
	<-before.Failed()
	require.ErrorIs(t, s.Set(t.Context(), "key", nil, nil), store.ErrUnavailable)
	has(t, store.New(after), "key", []byte("new"))
}

// cutOff loses the requests of a process after its first ones, until it is mended.
type cutOff struct {
	left   atomic.Int64 // of the first ones
	mended chan struct{}
}

// Call implements memTransport.
func (c *cutOff) Call(ctx context.Context, do func()) error {
	if c.left.Add(-1) < 0 {
		select {
		case <-c.mended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	do()
	return nil
}

// Deliver implements memTransport.
func (c *cutOff) Deliver(ctx context.Context) error { return ctx.Err() }

// TestAnAttemptToLeadThatFails checks that a process that could not begin a new store, at whichever of
// its requests, ends the sessions of clients that are gone when it leads what another process has made
// of it.
func TestAnAttemptToLeadThatFails(t *testing.T) {
	const grace = time.Second
	for requests, failed := int64(0), true; failed; requests++ {
		require.Less(t, requests, int64(100), "it never leads at once")
		synctest.Test(t, func(t *testing.T) {
			etcd, o := newMemEtcd(), &etcdlog.Options{Root: newRoot()}
			way := &cutOff{mended: make(chan struct{})}
			way.left.Store(requests)
			led := make(chan *etcdlog.Leadership, 1)
			go func() {
				l, err := etcdlog.Lead(t.Context(), etcd.Client(way), "127.0.0.1:1", o)
				assert.NoError(t, err)
				led <- l
			}()
			if synctest.Wait(); len(led) > 0 {
				failed = false
				close(way.mended)
				require.NoError(t, (<-led).Close())
				return
			}
			other := standing(t, etcd.Client(direct{}), o)()
			require.NoError(t, other.memory.Do(t.Context(), &wire.Request{Op: wire.OpHello, Key: "a client"}, new(wire.Reply)))
			time.Sleep(10 * time.Second) // attempts fail
			close(way.mended)
			other.end(t)
			l := <-led
			m := &store.Memory{Replica: l, ReconnectTimeout: grace}
			require.NoError(t, m.Open())
			sessions := func() int64 {
				status, err := store.New(m).Status(t.Context(), "")
				require.NoError(t, err)
				return status.Server.Sessions
			}
			require.EqualValues(t, 1, sessions())
			time.Sleep(grace + time.Second)
			require.Zero(t, sessions())
			require.NoError(t, m.Close())
			require.NoError(t, l.Close())
		})
	}
}

// TestLeadEnds checks that Lead ends with its context, whichever of its requests has no answer then.
func TestLeadEnds(t *testing.T) {
	enough := errors.New("enough")
	for requests, leads := int64(0), false; !leads; requests++ {
		synctest.Test(t, func(t *testing.T) {
			way := &cutOff{mended: make(chan struct{})}
			way.left.Store(requests)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second/2, func() { cancel(enough) })
			l, err := etcdlog.Lead(ctx, newMemEtcd().Client(way), "127.0.0.1:1", nil)
			if leads = err == nil; leads {
				close(way.mended)
				require.NoError(t, l.Close())
				return
			}
			require.ErrorIs(t, err, enough)
		})
	}
}

// TestClockOfACheckpoint checks that a process that has followed the log, and one that has loaded a
// checkpoint, have the same deadlines, although reads had moved the clock of the leader that made it.
func TestClockOfACheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, o := newMemEtcd().Client(direct{}), &etcdlog.Options{Root: newRoot()}
		first := standing(t, c, o)()
		require.NoError(t, first.Set(t.Context(), "key", nil, nil))
		follower := standing(t, c, o)
		time.Sleep(time.Minute)
		_, err := first.Get(t.Context(), "key")
		require.NoError(t, err)
		_, err = first.Backup(t.Context(), io.Discard)
		require.NoError(t, err)
		first.end(t)
		second := follower()
		require.NoError(t, second.Set(t.Context(), "fleeting", nil, &store.SetOptions{TTL: 10 * time.Second}))
		loader := standing(t, c, o)
		time.Sleep(8 * time.Second)
		_, err = second.Get(t.Context(), "fleeting")
		require.NoError(t, err)
		second.end(t)
		third := loader()
		time.Sleep(5 * time.Second)
		_, err = third.Get(t.Context(), "fleeting")
		require.ErrorIs(t, err, store.ErrNotFound)
	})
}

// TestOwnCallsEndInTime checks that a call in the leader's process ends with its context, even while
// etcd does not answer. A change may have taken effect then.
func TestOwnCallsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := &cutOff{mended: make(chan struct{})}
		way.left.Store(math.MaxInt64)
		s := standing(t, newMemEtcd().Client(way), nil)()
		way.left.Store(0)
		err := s.Set(within(t, time.Second), "key", []byte("value"), nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, store.ErrUnknown)
		_, err = s.Status(within(t, time.Second), "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		close(way.mended)
		has(t, s.Store, "key", []byte("value"))
	})
}
