package etcdlog_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// cluster is an etcd of three members, and three replicas. Each replica reaches each member through
// a separate proxy.
type cluster struct {
	*replicas
	t       testing.TB
	members []*member
	peers   []*testcluster.Proxy   // in front of the members, for the other members
	clients [][]*testcluster.Proxy // [client][member]; clients 0–2 are the replicas, 3 all others
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{t: t}
	c.members = etcdBehind(t, 3, func(peer string) string {
		c.peers = append(c.peers, testcluster.NewProxy(t, peer))
		return c.peers[len(c.peers)-1].Addr()
	})
	for i := range 4 {
		c.clients = append(c.clients, nil)
		for _, m := range c.members {
			c.clients[i] = append(c.clients[i], testcluster.NewProxy(t, m.client))
		}
	}
	c.replicas = newReplicas(t, c.members, etcdlog.Options{}, 10*time.Second, c.etcds)
	c.liveness = 2 * time.Second
	return c
}

// etcds returns the addresses at which client who reaches the members.
func (c *cluster) etcds(who int) (addrs []string) {
	for _, p := range c.clients[who] {
		addrs = append(addrs, p.Addr())
	}
	return addrs
}

// client returns a client that dials the replicas if i is even, and one that finds them in etcd if
// i is odd.
func (c *cluster) client(i int) *store.Store {
	c.t.Helper()
	if i%2 == 0 {
		return c.dial(c.t)
	}
	return c.open(c.t, strings.Join(c.etcds(3), ","))
}

// cut drops all traffic, and refuses connections.
func cut(proxies ...*testcluster.Proxy) (undo func()) {
	heal := silence(proxies...)
	for _, p := range proxies {
		p.Refuse(true)
	}
	return func() {
		for _, p := range proxies {
			p.Refuse(false)
		}
		heal()
	}
}

// silence drops all traffic, but accepts connections.
func silence(proxies ...*testcluster.Proxy) (undo func()) {
	for _, p := range proxies {
		p.Blackhole(true)
	}
	return func() {
		for _, p := range proxies {
			p.Blackhole(false)
			p.Cut(testcluster.RST)
		}
	}
}

// target is what faults strike: a process, and connections to it or from it.
type target struct {
	name    string
	process *launch.Process // nil: its connections only
	start   func()
	proxies []*testcluster.Proxy
}

func (c *cluster) replica(i int) target {
	return target{"a replica", c.procs[i], func() { c.start(c.t, i) }, c.clients[i]}
}

// front is a replica that only clients cannot reach. A leader goes on leading, so such a fault must be
// shorter than the reconnect timeout of sessions.
func (c *cluster) front(i int) target {
	return target{name: "the clients of a replica", proxies: c.fronts[i : i+1]}
}

func (c *cluster) member(i int) target {
	m := c.members[i]
	proxies := []*testcluster.Proxy{c.peers[i]}
	for _, who := range c.clients {
		proxies = append(proxies, who[i])
	}
	return target{"a member", m.Process, func() { m.start(c.t) }, proxies}
}

// faults are those of processes, and then those of connections. do injects one, and undo ends it.
var faults = []struct {
	name string
	do   func(t testing.TB, x target) (undo func())
}{
	{"kill -9", func(t testing.TB, x target) func() {
		testcluster.Kill(t, x.process)
		return x.start
	}},
	{"SIGSTOP", func(t testing.TB, x target) func() {
		testcluster.Freeze(t, x.process)
		return func() { testcluster.Thaw(t, x.process) }
	}},
	{"cut off", func(_ testing.TB, x target) func() { return cut(x.proxies...) }},
	{"no data", func(_ testing.TB, x target) func() { return silence(x.proxies...) }},
	{"reset", func(_ testing.TB, x target) func() {
		for _, p := range x.proxies {
			p.Cut(testcluster.RST)
		}
		return func() {}
	}},
}

// ofConnections is the number of faults of processes.
const ofConnections = 2

// etcdLeader returns the index of the member that leads etcd, or 0 if it is unknown.
func (c *cluster) etcdLeader() int {
	for i, m := range c.members {
		if st, err := c.find.Status(within(c.t, time.Second), m.client); err == nil && st.Leader == st.Header.MemberId {
			return i
		}
	}
	return 0
}

// lasts returns the duration of a fault. If it may be long, one in ten is longer than Outage, and
// one in fifty is longer than every timeout.
func lasts(longer bool) time.Duration {
	switch n := rand.IntN(50); {
	case longer && n == 0:
		return 25 * time.Second
	case longer && n <= 5:
		return 6 * time.Second
	}
	return 200*time.Millisecond + rand.N(1500*time.Millisecond)
}

// strike injects one or two faults for a while, and counts their kinds in kinds.
func (c *cluster) strike(soak bool, kinds map[string]int) {
	var undo []func()
	leader := c.leader(c.t)
	which, d := rand.IntN(10), lasts(soak)
	strike := func(x target, i int) {
		f := faults[rand.IntN(len(faults))]
		if x.process == nil {
			f, d = faults[ofConnections+rand.IntN(len(faults)-ofConnections)], lasts(false)
		}
		c.t.Logf("%s of %s, %d; %d leads; for %v", f.name, x.name, i, leader, d)
		kinds[f.name+" of "+x.name]++
		undo = append(undo, f.do(c.t, x))
	}
	if which < 7 {
		i := leader
		if rand.IntN(3) == 0 {
			i = (leader + 1) % 3
		}
		x := c.replica(i)
		if rand.IntN(4) == 0 {
			x = c.front(i)
		}
		strike(x, i)
	}
	if which > 4 {
		i := rand.IntN(3)
		if rand.IntN(2) == 0 {
			i = c.etcdLeader()
		}
		strike(c.member(i), i)
	}
	<-time.After(d)
	for _, f := range undo {
		f()
	}
	<-time.After(time.Duration(rand.IntN(300)) * time.Millisecond)
}

// TestFaults checks that, while processes of all kinds fail under a mixed load, no rank is lost, and the
// histories of all clients are linearizable. With MUSTER_SOAK=1 it injects a thousand faults instead of
// ten.
func TestFaults(t *testing.T) {
	kinds := map[string]int{}
	c := newCluster(t)
	c.leader(t)
	l := newLoad(t, 4, c.client)
	l.more(20)
	for n := range testcluster.Form(10, 1000) {
		if l.over.Load() {
			break
		}
		c.strike(testcluster.Soak(), kinds)
		if n%10 == 9 {
			l.more(10)
		}
	}
	l.more(20)
	l.end()
	t.Log("faults:", kinds)
}

// TestSilentMember checks that a member of etcd that neither answers nor refuses connections does
// not make the leader step down.
func TestSilentMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.leader(t)
	l := newLoad(t, 2, c.client)
	l.more(20)
	revision := func() int64 {
		resp, err := c.find.Get(bounded(t), c.options.Root+"leader")
		require.NoError(t, err)
		return resp.Kvs[0].ModRevision
	}
	before := revision()
	for _, who := range c.clients {
		who[0].Blackhole(true)
	}
	<-time.After(3 * time.Second)
	require.Equal(t, before, revision())
	l.more(20)
	for _, who := range c.clients {
		who[0].Blackhole(false)
	}
	l.end()
}
