package etcdstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// endLeases ends all leases of a cluster, as etcd does with those of a process that was away for too long.
func endLeases(t *testing.T, c *clientv3.Client) {
	t.Helper()
	leases, err := c.Leases(bounded(t))
	require.NoError(t, err)
	for _, l := range leases.Leases {
		_, err := c.Revoke(bounded(t), l.ID)
		require.NoError(t, err)
	}
}

// Whoever was away for too long hears so, and can do nothing any more in its old name. What it calls then is in a new session.
func TestLostSession(t *testing.T) {
	members := etcd(t)
	o := &etcdstore.Options{Root: newRoot(), Session: 2 * time.Second}
	ranks := []*store.Store{store.New(dial(t, addresses(members), o)), store.New(dial(t, addresses(members), &etcdstore.Options{Root: o.Root}))}
	gens := make([]uint64, 2)
	each(2, func(i int) {
		roll, err := ranks[i].Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: 2}, nil)
		require.NoError(t, err)
		gens[i] = roll.Generation
	})
	lease, err := ranks[0].Lease(bounded(t), 3*time.Second)
	require.NoError(t, err)
	require.NoError(t, ranks[0].Set(bounded(t), "held", nil, &store.SetOptions{Lease: lease}))
	endLeases(t, plain(t, members))

	c := wire.Contribution{Generation: gens[0], Seq: 1, Root: -1, Verb: "barrier", Want: wire.WantNothing}
	_, err = ranks[0].Collect(bounded(t), c, nil)
	require.ErrorIs(t, err, store.ErrSession)
	require.ErrorIs(t, err, store.ErrUnavailable)
	<-lease.Done()
	_, err = ranks[0].Get(bounded(t), "held")
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, ranks[0].Set(bounded(t), "key", []byte("in a new session"), nil))
	_, err = ranks[0].Collect(bounded(t), c, nil)
	require.ErrorIs(t, err, store.ErrStale) // the new session has no part in that generation, and learns nothing of it
}

// A change that was under way when its session was lost is unknown, or was refused; it is not made twice, or later.
func TestChangeOfALostSession(t *testing.T) {
	members := etcd(t)
	s, other := store.New(dial(t, addresses(members), &etcdstore.Options{Root: "a/"})), plain(t, members)
	_, err := s.Add(bounded(t), "n", 1)
	require.NoError(t, err)
	endLeases(t, other)
	_, err = s.Add(bounded(t), "n", 1)
	require.ErrorIs(t, err, store.ErrSession)
	n, err := s.Add(bounded(t), "n", 1)
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
}

// What ranks leave behind is gone with the last of them.
func TestGroupsLeaveNothing(t *testing.T) {
	members := etcd(t)
	c := plain(t, members)
	o := &etcdstore.Options{Root: newRoot()}
	ranks := []*store.Store{store.New(dial(t, addresses(members), o)), store.New(dial(t, addresses(members), o))}
	each(2, func(i int) {
		roll, err := ranks[i].Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: 2}, nil)
		require.NoError(t, err)
		for seq := uint64(1); seq <= 20; seq++ {
			_, err = ranks[i].Collect(bounded(t), wire.Contribution{
				Generation: roll.Generation, Rank: i, Seq: seq, Root: -1, Verb: []string{"barrier", "all-gather"}[seq%2], Want: wire.WantAll,
			}, []byte("payload"))
			require.NoError(t, err)
		}
		require.NoError(t, ranks[i].Close())
	})
	resp, err := c.Get(bounded(t), o.Root, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		t.Logf("%s", kv.Key)
	}
	require.Empty(t, resp.Kvs)
}

// What ranks leave behind that are killed is taken out by groups that come after them, and nothing of those that are in use.
func TestLeftovers(t *testing.T) {
	members := etcd(t)
	root := newRoot()
	keys := func() int {
		resp, err := plain(t, members).Get(bounded(t), root, clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		return int(resp.Count)
	}
	run := func(name string) (*etcdstore.Engine, wire.Contribution) {
		e := dial(t, addresses(members), &etcdstore.Options{Root: root, Session: 2 * time.Second})
		roll, err := store.New(e).Join(bounded(t), wire.Contribution{Group: name, Size: 1}, nil)
		require.NoError(t, err)
		c := wire.Contribution{Generation: roll.Generation, Seq: 1, Root: -1, Verb: "all-gather", Want: wire.WantAll}
		_, err = store.New(e).Collect(bounded(t), c, []byte("payload"))
		require.NoError(t, err)
		return e, c
	}
	living, c := run("in use")
	one := keys()
	for i := range 20 {
		e, _ := run(fmt.Sprint("crashes ", i))
		etcdstore.Kill(e)
	}
	require.Greater(t, keys(), 10*one)
	require.Eventually(t, func() bool {
		e, _ := run("comes later")
		require.NoError(t, e.Close())
		return keys() <= one
	}, patience, 20*time.Millisecond)
	c.Seq++
	_, err := store.New(living).Collect(bounded(t), c, []byte("payload"))
	require.NoError(t, err)
}

// The number of keys that a channel's records leave does not grow with them, whatever ranks call.
func TestRecordsLeaveLittle(t *testing.T) {
	members := etcd(t)
	o := &etcdstore.Options{Root: newRoot()}
	const n = 3
	ranks := make([]*store.Store, n)
	for i := range ranks {
		ranks[i] = store.New(dial(t, addresses(members), o))
	}
	each(n, func(i int) {
		roll, err := ranks[i].Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
		require.NoError(t, err)
		for seq := uint64(1); seq <= 200; seq++ {
			c := wire.Contribution{Generation: roll.Generation, Rank: i, Seq: seq, Root: int(seq % n), Verb: "gather", Label: string('a' + rune(seq%40)), Want: wire.WantAll}
			if seq%5 == 0 {
				c.Verb, c.RootOnly, c.Want = "broadcast", true, int32(c.Root)
			}
			_, err = ranks[i].Collect(bounded(t), c, []byte("payload"))
			require.NoError(t, err)
		}
	})
	resp, err := plain(t, members).Get(bounded(t), o.Root, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		t.Logf("%s", kv.Key)
	}
	require.Less(t, len(resp.Kvs), 100)
}
