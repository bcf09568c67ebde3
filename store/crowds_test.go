package store_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestCrowds checks what many callers do at the same time, at a durable store, whose replies wait for its
// log, and through a relay.
func TestCrowds(t *testing.T) {
	for way, open := range map[string]sessions{"durable": durably, "relay": throughARelay} {
		for name, check := range map[string]func(t *testing.T, open func() *store.Store){
			"queue": crowdAtAQueue, "cancelled recvs": cancelledRecvs,
		} {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				check(t, open(t))
			})
		}
	}
}

// crowdAtAQueue checks that each value is given to one of those who pop, and that each of them is
// given the values of one push after the other in their order.
func crowdAtAQueue(t *testing.T, open func() *store.Store) {
	const pushers, poppers, each = 3, 2, 20
	ctx := bounded(t)
	var stores []*store.Store
	for range pushers + poppers {
		stores = append(stores, open())
	}
	var popped [poppers][]string
	(&team{t: t, stores: stores}).all(func(i int, s *store.Store) error {
		if i < pushers {
			for k := range each {
				if err := s.Push(ctx, "q", fmt.Appendf(nil, "%d %d", i, k)); err != nil {
					return err
				}
			}
			return nil
		}
		for range pushers * each / poppers {
			v, err := s.Pop(ctx, "q")
			if err != nil {
				return err
			}
			popped[i-pushers] = append(popped[i-pushers], string(v))
		}
		return nil
	})
	seen := map[string]bool{}
	for _, values := range popped {
		var next [pushers]int
		for _, v := range values {
			var pusher, k int
			_, err := fmt.Sscanf(v, "%d %d", &pusher, &k)
			require.NoError(t, err)
			require.GreaterOrEqual(t, k, next[pusher], "%q is late", v)
			next[pusher], seen[v] = k+1, true
		}
	}
	require.Len(t, seen, pushers*each)
}

// cancelledRecvs checks that a recv that is cancelled while its message arrives does not lose it.
func cancelledRecvs(t *testing.T, open func() *store.Store) {
	g := teamOf(t, open(), open())
	for pos := range uint64(20) {
		ctx, cancel := context.WithCancel(bounded(t))
		cancelled := start(func() error { _, err := g.recv(ctx, pos+1); return err })
		sent := start(func() error { return g.send(fmt.Append(nil, pos)) })
		cancel()
		if err := <-cancelled; err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		require.NoError(t, <-sent)
		m, err := g.recv(bounded(t), pos+1)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(pos), string(m))
	}
}
