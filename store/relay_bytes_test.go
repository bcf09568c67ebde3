package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestOneCopyForARelay checks that the payload of a root, and the payloads of an all-gather, travel
// once to a relay, whenever its ranks ask for them: some before the record is decided, and others
// one after the other when it is.
func TestOneCopyForARelay(t *testing.T) {
	t.Parallel()
	const ranks, size = 8, 1 << 20
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m}, tcp)
	g := teamOf(t, behind(t, s, relay(t, s.addr, new(store.Server), tcp).addr, ranks, 1)...) // rank 8 is not behind the relay
	sent := func() uint64 {
		for _, rank := range []int{0, ranks} { // bytes count when they are written, after which the next reply is
			_, err := g.stores[rank].Revision(bounded(t))
			require.NoError(t, err)
		}
		return counts(t, m, func(*store.ServerStatus) bool { return true }).Out
	}
	chance := rand.New(rand.NewPCG(1, 2))
	payload := func(seq uint64, size int) []byte { return bytes.Repeat([]byte{byte(seq)}, size) }
	for seq := uint64(1); seq <= 20; seq++ {
		before := sent()
		call := func(rank int) error { return g.broadcast(rank, ranks, "", seq, payload(seq, size)) }
		early := chance.IntN(ranks + 1) // these wait for the root
		errs := make(chan error, ranks)
		for rank := range early {
			go func() { errs <- call(rank) }()
		}
		counts(t, m, func(n *store.ServerStatus) bool { return n.Calls == int64(early) })
		require.NoError(t, call(ranks))
		for rank := early; rank < ranks; rank++ {
			require.NoError(t, call(rank))
		}
		for range early {
			require.NoError(t, <-errs)
		}
		require.Less(t, sent()-before, uint64(size+size/16), "#%d: %d of %d ranks waited for the root", seq, early, ranks)
	}

	before := sent()
	g.all(func(rank int, _ *store.Store) error {
		got, err := g.stores[rank].Collect(bounded(t), wire.Contribution{Generation: g.gen, Rank: rank, Seq: 21, Verb: "all-gather", Root: -1, Want: wire.WantAll}, payload(21, size/ranks))
		if err == nil && len(got) != ranks+1 {
			return fmt.Errorf("%d payloads", len(got))
		}
		return err
	})
	require.Less(t, sent()-before, uint64(2*size+size/2))
}

// broadcast calls broadcast seq on a channel for rank. The root gives the payload, and every other rank
// must get it.
func (g *team) broadcast(rank, root int, channel string, seq uint64, payload []byte) error {
	c := wire.Contribution{Generation: g.gen, Rank: rank, Channel: channel, Seq: seq, Verb: "broadcast", Root: root, RootOnly: true, Want: int32(root)}
	if rank == root {
		c.Want = wire.WantNothing
		_, err := g.stores[rank].Collect(bounded(g.t), c, payload)
		return err
	}
	got, err := g.stores[rank].Collect(bounded(g.t), c, nil)
	if err == nil && (len(got) != 1 || !bytes.Equal(got[0], payload)) {
		return fmt.Errorf("#%d on channel %q: another payload", seq, channel)
	}
	return err
}

// TestKeptRepliesOfARelay checks that each rank gets the payload of its call, however far it is
// behind others of its host: payloads that do not fit into what the relay keeps are replaced, on
// two channels, and the relay's connection is cut.
func TestKeptRepliesOfARelay(t *testing.T) {
	t.Parallel()
	for name, isCut := range map[string]bool{"cut": true, "not cut": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); readBehindARelay(t, isCut) })
	}
}

func readBehindARelay(t *testing.T, isCut bool) {
	const readers, broadcasts = 4, 40
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m, Limits: store.ServerLimits{ReconnectTimeout: comesBack}}, tcp)
	proxy := testcluster.NewProxy(t, s.addr)
	g := teamOf(t, behind(t, s, relay(t, proxy.Addr(), new(store.Server), tcp).addr, readers, 1)...)
	payload := func(channel string, seq uint64) []byte {
		chance := rand.New(rand.NewPCG(uint64(channel[0]), seq))
		return bytes.Repeat([]byte{byte(seq), channel[0]}, 16<<10+chance.IntN(1<<20))
	}
	accepted := func() int64 { return counts(t, m, func(*store.ServerStatus) bool { return true }).Accepted }
	before := accepted()
	var cuts sync.WaitGroup
	g.all(func(rank int, _ *store.Store) error {
		var channels [2]error
		var both sync.WaitGroup
		for i, channel := range []string{"a", "b"} {
			both.Go(func() {
				for seq := uint64(1); seq <= broadcasts && channels[i] == nil; seq++ {
					if isCut && rank == 0 && seq%16 == 0 {
						cuts.Go(func() { proxy.Cut(testcluster.RST) })
					}
					channels[i] = g.broadcast(rank, readers, channel, seq, payload(channel, seq))
				}
			})
		}
		both.Wait()
		return errors.Join(channels[:]...)
	})
	cuts.Wait()
	require.Equal(t, isCut, accepted() > before, "the relay closes a connection to a store that contradicts itself")
}
