package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// storm breaks the connections of clients, in turn, while they call. After each break it waits until
// some calls have succeeded.
type storm struct {
	t     *testing.T
	open  func() *store.Store
	calls atomic.Int64  // number of successful calls
	over  chan struct{} // closed after the last break
}

// breaks is the number of breaks in a storm.
const breaks = 40

// strike starts the storm, over the connections of stores.
func (s *storm) strike(stores ...*store.Store) {
	ctx, ended := bounded(s.t), make(chan error, 1)
	go func() {
		defer close(s.over)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range breaks {
			before := s.calls.Load()
			breakConn(stores[i%len(stores)].Engine())
			for s.calls.Load() < before+int64(2*len(stores)) {
				select {
				case <-tick.C:
				case <-ctx.Done():
					ended <- fmt.Errorf("after break %d: %d calls in all, and no more", i, before)
					return
				}
			}
		}
		ended <- nil
	}()
	s.t.Cleanup(func() { require.NoError(s.t, <-ended) })
}

// call calls do until the storm is over, or do fails.
func (s *storm) call(do func(n int) error) error {
	for n := 0; ; n++ {
		select {
		case <-s.over:
			return nil
		default:
		}
		if err := do(n); err != nil {
			return fmt.Errorf("call %d: %w", n, err)
		}
		s.calls.Add(1)
	}
}

// TestConnectionsBreak checks that clients whose connections break do not notice: each change is
// applied once, and each answer, event and message arrives once. TestLinearizable does so for
// operations on one key, and TestKillNine, TestOtherWays and TestARelayIsFrozen for collectives.
func TestConnectionsBreak(t *testing.T) {
	for way, at := range map[string]func(t *testing.T) *service{
		"loop":      func(t *testing.T) *service { return serve(t, patient(), tcp) },
		"goroutine": func(t *testing.T) *service { return serve(t, patient(), pipes) },
		"durable relay": func(t *testing.T) *service {
			srv := patient()
			srv.Engine = onDisk(t)
			return relay(t, serve(t, srv, tcp).addr, patient(), tcp)
		},
	} {
		for name, during := range map[string]func(*storm){
			"order": orderBreaks,
			"watch": watchBreaks, "messages": messagesBreak, "join": joinBreaks,
		} {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := at(t)
				during(&storm{t: t, open: func() *store.Store { return s.client(t) }, over: make(chan struct{})})
			})
		}
	}
}

// orderBreaks checks that a set that was given up does not overtake the next one. Each key has one
// writer, which knows the value. Values are larger than any buffer: connections break within a frame.
func orderBreaks(s *storm) {
	a, b := s.open(), s.open()
	s.strike(a, b)
	callers := team{t: s.t, stores: slices.Repeat([]*store.Store{a, b}, 4)}
	callers.all(func(caller int, c *store.Store) error {
		key := fmt.Sprint("own ", caller)
		return s.call(func(n int) error {
			ctx, cancel := context.WithTimeout(bounded(s.t), time.Duration((caller+n)%5)*100*time.Microsecond)
			defer cancel()
			_ = c.Set(ctx, key, []byte("given up, perhaps"), nil)
			return setAndGet(bounded(s.t), c, key, strings.Repeat(fmt.Sprint(n, " "), 20_000))
		})
	})
}

func watchBreaks(s *storm) {
	ctx, c, other := bounded(s.t), s.open(), s.open()
	from, err := c.Revision(ctx)
	require.NoError(s.t, err)
	s.strike(c, other)
	count := 0 // of the changes
	wrote := start(func() error {
		err := s.call(func(n int) error {
			count = n + 1
			return other.Set(ctx, "w/key", fmt.Append(nil, n), nil)
		})
		return errors.Join(err, other.Set(ctx, "w/end", nil, nil))
	})
	seen := 0
	for e, err := range c.Watch(ctx, "w/", max(from, 1)) {
		require.NoError(s.t, err)
		if e.Key == "w/end" {
			break
		}
		require.Equal(s.t, fmt.Sprint(seen), string(e.Value))
		seen++
	}
	require.NoError(s.t, <-wrote)
	require.Equal(s.t, count, seen)
}

func messagesBreak(s *storm) {
	g := teamOf(s.t, s.open(), s.open())
	s.strike(g.stores...)
	sent := start(func() error {
		err := s.call(func(n int) error { return g.send(fmt.Append(nil, n+1)) })
		return errors.Join(err, g.send([]byte("end")))
	})
	for pos := uint64(1); ; pos++ {
		m, err := g.recv(bounded(s.t), pos)
		require.NoError(s.t, err)
		if string(m) == "end" {
			break
		}
		require.Equal(s.t, fmt.Sprint(pos), string(m))
	}
	require.NoError(s.t, <-sent)
}

// joinBreaks breaks the connection of a rank that waits in a join, or that joins at that time.
func joinBreaks(s *storm) {
	a, b := s.open(), s.open()
	for i := range 10 {
		at := func(rank int) wire.Contribution {
			return wire.Contribution{Group: fmt.Sprint("group ", i), Run: "r", Rank: rank, Size: 2}
		}
		var first store.Formed
		joined := start(func() (err error) {
			first, err = a.Join(bounded(s.t), at(0), nil)
			return err
		})
		if i%2 == 0 { // a's connection is there
			_, err := a.Get(bounded(s.t), "no such key")
			require.ErrorIs(s.t, err, store.ErrNotFound)
		}
		broken := make(chan struct{})
		go func() {
			defer close(broken)
			breakConn(a.Engine())
		}()
		second, err := b.Join(bounded(s.t), at(1), nil)
		require.NoError(s.t, err)
		<-broken
		require.NoError(s.t, <-joined)
		require.Equal(s.t, first.Generation, second.Generation)
		(&team{t: s.t, stores: []*store.Store{a, b}, gen: first.Generation}).goesOn(1)
	}
}
