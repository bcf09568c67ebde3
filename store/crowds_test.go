package store_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// TestCrowds checks what many callers do at the same time, at a durable store, whose replies wait for its
// log, and through a relay.
func TestCrowds(t *testing.T) {
	for way, open := range map[string]sessions{"durable": durably, "relay": throughARelay} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			crowdAtAQueue(t, open(t))
		})
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
