package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// crew are the ranks of a generation, each with a session of its own, and somebody else who looks.
type crew struct {
	t       *testing.T
	looks   *store.Store
	engines []*etcdstore.Engine
	ranks   []*store.Store
	gen     uint64
	calls   []chan error
}

// crewOf makes a generation of a group at members, below root.
func crewOf(t *testing.T, members []*member, root, group string, n int) *crew {
	t.Helper()
	o := &etcdstore.Options{Root: root, Session: 2 * time.Second}
	c := &crew{t: t, looks: store.New(dial(t, addresses(members), o))}
	for range n {
		c.engines = append(c.engines, dial(t, addresses(members), o))
		c.ranks = append(c.ranks, store.New(c.engines[len(c.engines)-1]))
	}
	gens := make([]uint64, n)
	each(n, func(i int) {
		roll, err := c.ranks[i].Join(bounded(t), wire.Contribution{Group: group, Run: "run", Rank: i, Size: n, Label: fmt.Sprint("pid ", i)}, nil)
		assert.NoError(t, err)
		gens[i] = roll.Generation
	})
	c.gen = gens[0]
	return c
}

func (c *crew) in(rank int, x wire.Contribution) wire.Contribution {
	x.Generation, x.Rank = c.gen, rank
	return x
}

// call has a rank call x beside the test, until that ends.
func (c *crew) call(rank int, x wire.Contribution) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := c.ranks[rank].Collect(ctx, c.in(rank, x), nil)
		done <- err
		close(done)
	}()
	c.calls = append(c.calls, done)
	c.t.Cleanup(func() {
		cancel()
		for range done { // until it has ended
		}
	})
}

// all has every rank call x.
func (c *crew) all(x wire.Contribution) {
	each(len(c.ranks), func(i int) {
		_, err := c.ranks[i].Collect(bounded(c.t), c.in(i, x), nil)
		assert.NoError(c.t, err)
	})
}

// sees returns the only group of a status once it is as is says.
func (c *crew) sees(is func(g *store.GroupStatus) bool) *store.GroupStatus {
	c.t.Helper()
	var s *store.Status
	require.Eventually(c.t, func() bool {
		var err error
		s, err = c.looks.Status(bounded(c.t), "")
		return assert.NoError(c.t, err) && len(s.Groups) == 1 && is(&s.Groups[0])
	}, patience, 10*time.Millisecond, "%+v", &s)
	return &s.Groups[0]
}

func barrierOf(seq uint64) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
}

func broadcastOf(seq uint64, root int) wire.Contribution {
	return wire.Contribution{Seq: seq, Verb: "broadcast", Root: root, RootOnly: true, Want: int32(root)}
}

func came(n int) func(g *store.GroupStatus) bool {
	return func(g *store.GroupStatus) bool { return len(g.Records) == 1 && g.Records[0].Came.Count == n }
}

func ranksOf(list ...int) (r wire.Ranks) {
	for _, rank := range list {
		r.Add(rank)
	}
	return r
}

// Who has come to a barrier, who is missing, what that rank did last; and for how long, as soon as those who wait have said so.
func TestStatusOfAStuckBarrier(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "jobs/train", 4)
	c.all(barrierOf(1))
	for _, rank := range []int{0, 1, 3} {
		c.call(rank, barrierOf(2))
	}
	g := c.sees(came(3))
	require.Equal(t, []any{"jobs/train", "run", c.gen, 4, 4, 1}, []any{g.Name, g.Run, g.Generation, g.Size, g.Present, g.Open})
	require.Equal(t, []time.Duration{-1, -1}, []time.Duration{g.Age, g.Ended})
	r := g.Records[0]
	require.Equal(t, []any{"barrier", uint64(2), -1, ""}, []any{r.Verb, r.Seq, r.Root, r.Channel})
	require.Equal(t, []wire.Ranks{ranksOf(0, 1, 3), ranksOf(2)}, []wire.Ranks{r.Came, r.Missing})
	missing := g.Ranks[2]
	require.NotZero(t, missing.Session)
	missing.Session = 0
	require.Equal(t, wire.RankStatus{Rank: 2, Label: "pid 2", Verb: "barrier", Seq: 1, Ago: -1, Heard: -1}, missing)

	g = c.sees(func(g *store.GroupStatus) bool { return g.Records[0].For > 0 })
	require.Less(t, g.Records[0].For, patience)
	g = c.sees(func(g *store.GroupStatus) bool { return g.Ranks[3].Ago > 0 })
	require.Equal(t, []any{"barrier", uint64(2)}, []any{g.Ranks[3].Verb, g.Ranks[3].Seq})

	c.call(2, barrierOf(2))
	c.sees(func(g *store.GroupStatus) bool { return g.Open == 0 && len(g.Records) == 0 })
	for _, done := range c.calls {
		require.NoError(t, <-done)
	}
}

// A root's verb waits for the root alone, and one that runs ahead for its slowest readers.
func TestStatusOfARoot(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 3)
	c.call(1, broadcastOf(1, 0))
	g := c.sees(came(1))
	require.Equal(t, []any{"broadcast", 0}, []any{g.Records[0].Verb, g.Records[0].Root})
	require.Equal(t, ranksOf(0), g.Records[0].Missing)
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error)
	go func() {
		var err error
		for seq := uint64(1); err == nil; seq++ {
			_, err = c.ranks[0].Collect(ctx, c.in(0, broadcastOf(seq, 0)), []byte("x"))
		}
		ended <- err
	}()
	g = c.sees(func(g *store.GroupStatus) bool { return g.Open == 1 && g.Records[0].Seq > 100 })
	require.Equal(t, []wire.Ranks{ranksOf(0), ranksOf(2)}, []wire.Ranks{g.Records[0].Came, g.Records[0].Missing}, "who has not passed")
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// Two channels and their names.
func TestStatusOfChannels(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 2)
	for rank, name := range []string{"a|b/c d", "\x00e"} {
		x := barrierOf(1)
		x.Channel = name
		c.call(rank, x)
	}
	g := c.sees(func(g *store.GroupStatus) bool {
		return len(g.Records) == 2 && g.Records[0].For > 0 && g.Records[1].For > 0
	})
	require.Equal(t, 2, g.Open)
	missing := map[string]wire.Ranks{}
	for _, r := range g.Records {
		missing[r.Channel] = r.Missing
	}
	require.Equal(t, map[string]wire.Ranks{"a|b/c d": ranksOf(1), "\x00e": ranksOf(0)}, missing)
}

// A send and a recv that wait, as soon as their ranks have said so.
func TestStatusOfStreams(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 3)
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.ranks[1].Recv(ctx, wire.Contribution{Generation: c.gen, Rank: 1, Root: 2, Seq: 1})
		ended <- err
	}()
	g := c.sees(func(g *store.GroupStatus) bool { return len(g.Ranks[1].Waits) == 1 })
	w := g.Ranks[1].Waits[0]
	require.Positive(t, w.For)
	w.For = 0
	require.Equal(t, store.WaitStatus{Verb: "recv", Peer: 2}, w)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	c.sees(func(g *store.GroupStatus) bool { return len(g.Ranks[1].Waits) == 0 })
}

// Who has come to a group that comes together, since when, and who is missing.
func TestStatusOfThoseWhoComeTogether(t *testing.T) {
	o := &etcdstore.Options{Root: newRoot()}
	addrs := addresses(etcd(t))
	c := &crew{t: t, looks: store.New(dial(t, addrs, o))}
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 2)
	for _, rank := range []int{1, 3} {
		s := store.New(dial(t, addrs, o))
		go func() {
			_, err := s.Join(ctx, wire.Contribution{Group: "jobs/a b", Run: "7/8", Rank: rank, Size: 5, Label: fmt.Sprint("pid ", rank)}, []byte("me"))
			ended <- err
		}()
	}
	g := c.sees(func(g *store.GroupStatus) bool { return g.Present == 2 })
	require.Equal(t, []any{"jobs/a b", "7/8", uint64(0), 5, 1}, []any{g.Name, g.Run, g.Generation, g.Size, g.Open})
	r := g.Records[0]
	require.Equal(t, []any{"create", -1}, []any{r.Verb, r.Root})
	require.Equal(t, []wire.Ranks{ranksOf(1, 3), ranksOf(0, 2, 4)}, []wire.Ranks{r.Came, r.Missing})
	require.Equal(t, []string{"pid 1", "pid 3"}, []string{g.Ranks[0].Label, g.Ranks[1].Label})
	require.Positive(t, r.For)
	require.Less(t, r.For, patience)
	require.Equal(t, []time.Duration{r.For, -1}, []time.Duration{g.Age, g.Ended})
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-ended, context.Canceled)
	s, err := c.looks.Status(bounded(t), "")
	require.NoError(t, err)
	require.Empty(t, s.Groups, "nobody is in it any more")
}

// A rank that left, one that is lost, why that ends the generation, and who comes to that of the survivors.
func TestStatusOfTheGone(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 4)
	require.NoError(t, c.ranks[3].Leave(bounded(t), c.in(3, wire.Contribution{})))
	g := c.sees(func(g *store.GroupStatus) bool { return g.Present == 3 })
	require.Equal(t, wire.CodeLeft, g.Ranks[3].Gone)
	require.Nil(t, g.Over)
	etcdstore.Kill(c.engines[1])
	g = c.sees(func(g *store.GroupStatus) bool { return g.Over != nil })
	require.Equal(t, []any{2, wire.CodeOK, wire.CodeLost, wire.CodeLeft}, []any{g.Present, g.Ranks[0].Gone, g.Ranks[1].Gone, g.Ranks[3].Gone})
	require.Equal(t, []any{wire.CodeLost, []int{1}, "pid 1"}, []any{g.Over.Verdict.Code, g.Over.Verdict.Lost, g.Over.Verdict.Reason})
	require.EqualValues(t, -1, g.Over.Ago)

	shrunk := make(chan error, 1)
	go func() {
		_, err := c.ranks[0].Join(bounded(t), c.in(0, wire.Contribution{}), nil)
		shrunk <- err
	}()
	g = c.sees(came(1))
	require.Equal(t, []any{"shrink", ranksOf(0), ranksOf(2)}, []any{g.Records[0].Verb, g.Records[0].Came, g.Records[0].Missing})
	require.Positive(t, g.Records[0].For)
	_, err := c.ranks[2].Join(bounded(t), c.in(2, wire.Contribution{}), nil)
	require.NoError(t, err)
	require.NoError(t, <-shrunk)
	g = c.sees(func(g *store.GroupStatus) bool { return g.Generation > c.gen && g.Over == nil })
	require.Equal(t, []any{"g", 2, 2, "pid 2", 0}, []any{g.Name, g.Size, g.Present, g.Ranks[1].Label, g.Open})
}

// A generation whose ranks were all killed is over, though none was left to say so.
func TestStatusOfTheKilled(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 2)
	for _, e := range c.engines {
		etcdstore.Kill(e)
	}
	g := c.sees(func(g *store.GroupStatus) bool { return g.Present == 0 })
	require.Equal(t, []any{time.Duration(0), wire.CodeLost}, []any{g.Ended, g.Over.Verdict.Code})
}

// A verb that failed, and a group that was aborted.
func TestStatusOfFailures(t *testing.T) {
	c := crewOf(t, etcd(t), newRoot(), "g", 2)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.ranks[0].Collect(ctx, c.in(0, barrierOf(1)), nil)
	require.ErrorIs(t, err, store.ErrTimeout)
	g := c.sees(func(g *store.GroupStatus) bool { return len(g.Verdicts) == 1 })
	f := g.Verdicts[0]
	require.Equal(t, []any{"barrier", uint64(1), wire.CodeTimeout, []int{1}}, []any{f.Verb, f.Seq, f.Verdict.Code, f.Verdict.Missing})
	require.EqualValues(t, -1, f.Ago)
	require.Zero(t, g.Open)

	c.call(0, barrierOf(2))
	c.sees(came(1))
	abort := c.in(1, wire.Contribution{No: wire.CodeAborted, Reason: "no more data"})
	require.NoError(t, c.ranks[1].Leave(bounded(t), abort))
	g = c.sees(func(g *store.GroupStatus) bool { return g.Over != nil })
	require.Equal(t, []any{wire.CodeAborted, 1, "no more data"}, []any{g.Over.Verdict.Code, g.Over.Verdict.By, g.Over.Verdict.Reason})
	require.Empty(t, g.Records, "what was open is over")
}

// Below a prefix there are only groups whose names begin with it, and nothing of the store as a whole. What is unknown says so.
func TestStatusBelowAPrefix(t *testing.T) {
	members := etcd(t)
	const root = "jobs/"
	for _, name := range []string{"a/1", "a/2", "b c/1"} {
		crewOf(t, members, root, name, 1)
	}
	crewOf(t, members, "others/", "a/1", 1)
	s := open(t, "etcd://"+members[0].client+"/jobs")
	for prefix, want := range map[string][]string{"": {"a/1", "a/2", "b c/1"}, "a/": {"a/1", "a/2"}, "b ": {"b c/1"}, "a": {"a/1", "a/2"}, "x": nil} {
		all, err := s.Status(bounded(t), prefix)
		require.NoError(t, err)
		var names []string
		for _, g := range all.Groups {
			names = append(names, g.Name)
		}
		require.Equal(t, want, names, "%q", prefix)
		require.Equal(t, prefix == "", all.Server != nil)
	}
	for i := range 3 {
		require.NoError(t, s.Set(bounded(t), fmt.Sprint("key ", i), nil, nil))
	}
	all, err := s.Status(bounded(t), "")
	require.NoError(t, err)
	require.Equal(t, []int64{3, 3}, []int64{all.Server.Keys, all.Server.Groups})
	require.True(t, all.Server.Durable)
	for _, n := range []int64{int64(all.Server.Up), all.Server.Sessions, all.Server.Calls, all.Server.Bytes, all.Server.Conns, all.Server.Lost} {
		require.EqualValues(t, -1, n)
	}
}

// It takes the right to read, and no other; it changes nothing.
func TestStatusTakesTheRightToRead(t *testing.T) {
	members := etcd(t)
	own := store.New(dial(t, addresses(members), &etcdstore.Options{Root: "jobs/", Session: time.Minute}))
	_, err := own.Join(bounded(t), wire.Contribution{Group: "g", Size: 1, Label: "me"}, nil)
	require.NoError(t, err)
	for _, args := range []string{
		"user add root:secret", "user grant-role root root", "user add reader:hidden", "role add looks",
		"role grant-permission looks read jobs/ --prefix=true", "user grant-role reader looks",
		"user add half:hidden", "role add keys", "role grant-permission keys read jobs/k/ --prefix=true", "role grant-permission keys read jobs/r",
		"user grant-role half keys", "auth enable",
	} {
		ctl(t, members, args)
	}
	at := members[0].client
	c, err := clientv3.New(clientv3.Config{Endpoints: addresses(members), Username: "reader", Password: "hidden", Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close()
	reader := open(t, "etcd://reader:hidden@"+at+"/jobs")
	revision := func() int64 {
		resp, err := c.Get(bounded(t), "jobs/x")
		require.NoError(t, err)
		return resp.Header.Revision
	}
	before := revision()
	for range 3 {
		s, err := reader.Status(bounded(t), "")
		require.NoError(t, err)
		require.Equal(t, []any{1, "me"}, []any{s.Groups[0].Present, s.Groups[0].Ranks[0].Label})
	}
	require.Equal(t, before, revision())
	_, err = open(t, "etcd://half:hidden@"+at+"/jobs").Status(bounded(t), "")
	require.ErrorIs(t, err, store.ErrDenied)
}

// Much of everything is read in ranges that are small for etcd, as of one revision.
func TestStatusOfMuch(t *testing.T) {
	const ranks, groups = 10_000, 2_000
	members := etcd(t)
	root, c := newRoot(), plain(t, members)
	lease, err := c.Grant(bounded(t), 3600)
	require.NoError(t, err)
	var puts []clientv3.Op
	add := func(gen uint64, group string, size, missing int) {
		others, seats := etcdstore.Keys(root, gen, group, size, missing)
		for k, v := range others {
			puts = append(puts, clientv3.OpPut(k, v))
		}
		for k, v := range seats {
			puts = append(puts, clientv3.OpPut(k, v, clientv3.WithLease(lease.ID)))
		}
	}
	add(1, "large", ranks, 7)
	for i := range groups {
		add(uint64(i+2), fmt.Sprint("small ", i), 2, 1)
	}
	for some := range slices.Chunk(puts, 100) {
		_, err := c.Txn(bounded(t)).Then(some...).Commit()
		require.NoError(t, err)
	}
	began := time.Now()
	s, err := open(t, "etcd://"+members[0].client+"/"+root).Status(bounded(t), "")
	require.NoError(t, err)
	t.Logf("%d keys in %v", len(puts), time.Since(began))
	require.Len(t, s.Groups, 1+groups)
	require.EqualValues(t, 1+groups, s.Server.Groups)
	g := s.Groups[0]
	require.Equal(t, []int{ranks, ranks, ranks}, []int{g.Size, g.Present, len(g.Ranks)})
	require.Equal(t, "pid 9999", g.Ranks[9999].Label)
	require.Len(t, g.Records, 1)
	require.Equal(t, []any{ranksOf(7), ranks - 1}, []any{g.Records[0].Missing, g.Records[0].Came.Count})
	last := s.Groups[groups]
	require.Equal(t, []any{"small 1999", ranksOf(0), ranksOf(1)}, []any{last.Name, last.Records[0].Came, last.Records[0].Missing})
}

// There is a status also where somebody compacts all the time, so that no revision stays.
func TestStatusOverACompaction(t *testing.T) {
	members := etcd(t)
	root, c := newRoot(), plain(t, members)
	const groups = 50
	for i := range groups {
		others, seats := etcdstore.Keys(root, uint64(i+1), fmt.Sprint("g", i), 2, 1)
		lease, err := c.Grant(bounded(t), 3600)
		require.NoError(t, err)
		for k, v := range others {
			_, err := c.Put(bounded(t), k, v)
			require.NoError(t, err)
		}
		for k, v := range seats {
			_, err := c.Put(bounded(t), k, v, clientv3.WithLease(lease.ID))
			require.NoError(t, err)
		}
	}
	ctx, cancel := context.WithCancel(bounded(t))
	compacts := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if resp, err := c.Put(ctx, "else", ""); err == nil {
				_, _ = c.Compact(ctx, resp.Header.Revision)
			}
		}
		compacts <- n
	}()
	s := open(t, "etcd://"+members[0].client+"/"+root)
	for range 10 {
		all, err := s.Status(bounded(t), "")
		require.NoError(t, err)
		require.Len(t, all.Groups, groups)
	}
	cancel()
	require.Greater(t, <-compacts, 10)
}

// Ranks whose names and payloads are large are read few at a time.
func TestStatusOfLargeSeats(t *testing.T) {
	addrs := addresses(etcd(t))
	o := &etcdstore.Options{Root: newRoot(), Session: time.Minute}
	ctx, cancel := context.WithCancel(bounded(t))
	const n = 200
	s := store.New(dial(t, addrs, o))
	ended := make(chan error, n)
	for rank := range n {
		go func() {
			_, err := s.Join(ctx, wire.Contribution{Group: "g", Rank: rank, Size: n + 1, Label: fmt.Sprint("pid ", rank)}, make([]byte, 30_000))
			ended <- err
		}()
	}
	c := &crew{t: t, looks: store.New(dial(t, addrs, o))}
	g := c.sees(func(g *store.GroupStatus) bool { return g.Present == n })
	require.Equal(t, ranksOf(n), g.Records[0].Missing)
	for i, r := range g.Ranks {
		require.Equal(t, []any{i, fmt.Sprint("pid ", i)}, []any{r.Rank, r.Label})
	}
	cancel()
	for range n {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
}

// Keys that take long to count are counted for a hundredth of the time at most, few of them each time.
func TestStatusCountsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tally etcdstore.Tally
		asked := int64(0)
		count := func(takes time.Duration) int64 {
			n, err := tally.Count(func() (int64, error) {
				<-time.After(takes)
				asked++
				return asked, nil
			})
			require.NoError(t, err)
			return n
		}
		require.EqualValues(t, 1, count(time.Millisecond))
		require.EqualValues(t, 2, count(time.Second))
		<-time.After(99 * time.Second)
		require.EqualValues(t, 2, count(time.Second))
		<-time.After(2 * time.Second)
		require.EqualValues(t, 3, count(time.Second))
		<-time.After(time.Hour)
		_, err := tally.Count(func() (int64, error) { return 0, store.ErrDenied })
		require.ErrorIs(t, err, store.ErrDenied)
	})
}
