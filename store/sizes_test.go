package store_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// big returns n bytes that are not all the same.
func big(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

// TestListsOfManyPages checks that lists and watches of more entries than fit in a reply have each
// of them once, in order.
func TestListsOfManyPages(t *testing.T) {
	s, ctx := direct(t)(), bounded(t)
	const n = 2500
	rev, err := s.Revision(ctx)
	require.NoError(t, err)
	var want []string
	for i := range n {
		key := fmt.Sprintf("many/%04d", i)
		want = append(want, key)
		require.NoError(t, s.Set(ctx, key, []byte(key), nil))
	}
	require.NoError(t, s.Set(ctx, "many0", nil, nil))
	var listed, keys, changed []string
	for e, err := range s.List(ctx, "many/") {
		require.NoError(t, err)
		require.Equal(t, e.Key, string(e.Value))
		listed = append(listed, e.Key)
	}
	for key, err := range s.Keys(ctx, "many/") {
		require.NoError(t, err)
		keys = append(keys, key)
	}
	for e, err := range s.Watch(ctx, "many/", max(rev, 1)) {
		require.NoError(t, err)
		require.Greater(t, e.Rev, rev)
		rev = e.Rev
		if changed = append(changed, e.Key); len(changed) == n {
			break
		}
	}
	require.Equal(t, want, listed)
	require.Equal(t, want, keys)
	require.Equal(t, want, changed)
}

// TestLargePayloads checks messages of no byte, of one, and of as many as fit, and results larger than
// a buffer.
func TestLargePayloads(t *testing.T) {
	for name, open := range map[string]sessions{"client": direct, "relay": throughARelay} {
		t.Run(name, func(t *testing.T) {
			session := open(t)
			g, ctx := teamOf(t, session(), session()), bounded(t)
			for i, n := range []int{0, 1, wire.MaxValue} {
				g.all(func(rank int, _ *store.Store) error {
					if rank == 0 {
						return g.send(big(n))
					}
					got, err := g.recv(ctx, uint64(i+1))
					if err == nil && (got == nil || !bytes.Equal(got, big(n))) {
						err = fmt.Errorf("%d bytes of %d", len(got), n)
					}
					return err
				})
			}
			g.all(func(rank int, _ *store.Store) error {
				_, err := g.gather(ctx, rank, 1, string(big(4<<20)))
				return err
			})
		})
	}
}

// TestLargeGroups checks a group whose status does not fit in one reply.
func TestLargeGroups(t *testing.T) {
	const ranks = 2500
	s, ctx := direct(t)(), bounded(t)
	(&team{t: t, stores: slices.Repeat([]*store.Store{s}, ranks)}).all(func(rank int, s *store.Store) error {
		_, err := s.Join(ctx, wire.Contribution{Group: "g", Run: "r", Rank: rank, Size: ranks, Label: fmt.Sprint("rank ", rank)}, nil)
		return err
	})
	status, err := s.Status(ctx, "")
	require.NoError(t, err)
	require.Len(t, status.Groups[0].Ranks, ranks)
	for i, r := range status.Groups[0].Ranks {
		require.Equal(t, i, r.Rank)
		require.Equal(t, fmt.Sprint("rank ", i), r.Label)
	}
}
