package store_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// big returns n bytes that are not all the same.
func big(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }

// TestTheLargestFit checks the limits of the protocol: what is as large as them arrives, and what is
// larger is refused and harms nothing.
func TestTheLargestFit(t *testing.T) {
	s, ctx := direct(t)(), bounded(t)
	longest, largest := string(big(wire.MaxKey)), big(wire.MaxValue)
	require.NoError(t, s.Set(ctx, longest, largest, nil))
	v, err := s.Get(ctx, longest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(largest, v))
	_, err = s.Append(ctx, longest, []byte("1"))
	require.ErrorIs(t, err, store.ErrTooLarge)
	require.ErrorIs(t, s.Set(ctx, longest, make([]byte, wire.MaxValue+1), nil), store.ErrTooLarge)
	v, err = s.Get(ctx, longest)
	require.NoError(t, err)
	require.True(t, bytes.Equal(largest, v), "it stays as it is")

	require.ErrorIs(t, s.Set(ctx, longest+"x", nil, nil), store.ErrTooLarge)
	_, err = s.Get(ctx, longest+"x")
	require.ErrorIs(t, err, store.ErrTooLarge)
	require.Less(t, len(err.Error()), 1000)
	_, err = s.Wait(ctx, make([]string, wire.MaxKeys+1)...)
	require.ErrorIs(t, err, store.ErrTooLarge)

	queue := strings.Repeat("q", wire.MaxKey-len(wire.QueuedKey("", 0))) // its values need a number
	require.NoError(t, s.Push(ctx, queue, []byte("v")))
	require.ErrorIs(t, s.Push(ctx, queue+"q", []byte("v")), store.ErrTooLarge)
	v, err = s.Pop(ctx, queue)
	require.NoError(t, err)
	require.Equal(t, "v", string(v))
	works(t, s)
}

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

	for i := range 5 { // three of them exceed a page
		require.NoError(t, s.Set(ctx, fmt.Sprint("large/", i), big(600<<10+i), nil))
	}
	i := 0
	for e, err := range s.List(ctx, "large/") {
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("large/", i), e.Key)
		require.Len(t, e.Value, 600<<10+i)
		i++
	}
	require.Equal(t, 5, i)
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

// TestLargeGroups checks groups whose members, or whose status, do not fit in one reply.
func TestLargeGroups(t *testing.T) {
	const n, perNode, host = wire.MaxInline + 5, 3, 4
	s, ctx := direct(t)(), bounded(t)
	member := func(i int) []byte {
		return wire.AppendMember(nil, &wire.Member{Node: uint64(i / perNode), PID: uint32(i), Hosts: i == host}) // #nosec G115 -- small
	}
	stores, formed := make([]*store.Store, n), make([]store.Formed, n)
	for i := range stores {
		stores[i] = s
	}
	g := &team{t: t, stores: stores}
	g.all(func(rank int, s *store.Store) (err error) {
		formed[rank], err = s.Join(ctx, wire.Contribution{Group: "g", Run: "r", Rank: rank, Size: n}, member(rank))
		return err
	})
	for i, f := range formed {
		require.Equal(t, []int{i, n, host, (n + perNode - 1) / perNode}, []int{f.Rank, f.Size, f.Host, f.Nodes})
		require.Nil(t, f.Members)
		for other := range n {
			require.Equal(t, i/perNode == other/perNode, f.Local.Has(other), "node of %d and %d", i, other)
		}
	}
	members := func(rank, first, most int) ([][]byte, error) {
		return s.Members(ctx, wire.Contribution{Generation: formed[0].Generation, Rank: rank}, first, most)
	}
	for _, part := range [][3]int{{0, 0, n}, {60, 2, 62}, {n - 1, 2, n}} {
		got, err := members(7, part[0], part[1])
		require.NoError(t, err)
		require.Len(t, got, part[2]-part[0])
		for i, m := range got {
			require.Equal(t, member(part[0]+i), m)
		}
	}
	for _, first := range []int{-1, n + 1} {
		_, err := members(7, first, 0)
		require.ErrorIs(t, err, store.ErrInvalid)
	}

	const many = 2500
	crowd := serve(t, new(store.Server), tcp).client(t)
	joining := make(chan error, many)
	for rank := range many {
		go func() {
			_, err := crowd.Join(ctx, wire.Contribution{Group: "g", Run: "r", Rank: rank, Size: many, Label: fmt.Sprint("rank ", rank)}, nil)
			joining <- err
		}()
	}
	for range many {
		require.NoError(t, <-joining)
	}
	status, err := crowd.Status(ctx, "")
	require.NoError(t, err)
	require.Len(t, status.Groups[0].Ranks, many)
	for i, r := range status.Groups[0].Ranks {
		require.Equal(t, i, r.Rank)
		require.Equal(t, fmt.Sprint("rank ", i), r.Label)
	}
}
