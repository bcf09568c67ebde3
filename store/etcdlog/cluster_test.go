package etcdlog_test

import (
	"context"
	"encoding/json"
	"net"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// replicaArg is the argument of a replica process.
type replicaArg struct {
	Endpoints              []string
	Addr                   string // address on which it listens
	Front                  string // address at which clients reach it
	Root                   string
	Outage, FailureTimeout time.Duration
	Grace                  time.Duration // reconnect timeout of sessions; 0 is the default
}

// childReplica runs a replica until SIGTERM.
func childReplica(ctx context.Context, arg string) error {
	var a replicaArg
	if err := json.Unmarshal([]byte(arg), &a); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	c, err := (&etcdlog.Cluster{Endpoints: a.Endpoints}).Client()
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := net.Listen("tcp", a.Addr)
	if err != nil {
		return err
	}
	r := &etcdlog.Replica{Client: c, Options: etcdlog.Options{Root: a.Root, OutageTimeout: a.Outage, FailureTimeout: a.FailureTimeout}, Listener: l, Addr: a.Front}
	r.NewServer = func(m *store.Memory) (*store.Server, error) {
		return &store.Server{Engine: m, Limits: store.ServerLimits{ReconnectTimeout: a.Grace}}, nil
	}
	return r.Run(ctx)
}

// run runs a replica in this process until end is called, at the end of the test at the latest.
func run(t testing.TB, r *etcdlog.Replica) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	end = sync.OnceFunc(func() {
		stop()
		select {
		case err := <-ended:
			assert.NoError(t, err)
		case <-time.After(testTimeout):
			t.Error("the replica does not end")
		}
	})
	t.Cleanup(end)
	return end
}

// replicas are the processes of one replicated store.
type replicas struct {
	find     *clientv3.Client
	options  etcdlog.Options
	procs    []*launch.Process
	args     []replicaArg
	fronts   []*testcluster.Proxy
	liveness time.Duration // of clients; 0: the default
}

// newReplicas starts three processes. etcds returns the addresses at which process i reaches etcd.
func newReplicas(t testing.TB, members []*member, o etcdlog.Options, grace time.Duration, etcds func(i int) []string) *replicas {
	t.Helper()
	r := &replicas{find: client(t, members), options: o, procs: make([]*launch.Process, 3)}
	r.options.Root = newRoot()
	for i := range r.procs {
		a := replicaArg{Endpoints: etcds(i), Addr: testcluster.Port(t), Root: r.options.Root, Outage: r.options.OutageTimeout, FailureTimeout: r.options.FailureTimeout, Grace: grace}
		r.fronts = append(r.fronts, testcluster.NewProxy(t, a.Addr))
		a.Front = r.fronts[i].Addr()
		r.args = append(r.args, a)
		r.start(t, i)
	}
	return r
}

// threeReplicas starts three processes over one etcd, which gets additional flags.
func threeReplicas(t testing.TB, flags ...string) (*replicas, []*member) {
	t.Helper()
	members := etcd(t, flags...)
	return newReplicas(t, members, etcdlog.Options{OutageTimeout: time.Second}, 0, func(int) []string { return addresses(members) }), members
}

func (r *replicas) start(t testing.TB, i int) {
	t.Helper()
	arg, err := json.Marshal(r.args[i])
	require.NoError(t, err)
	r.procs[i] = testcluster.Start(t, "replica", string(arg))
}

// restart starts a process that has ended, and waits until it follows.
func (r *replicas) restart(t testing.TB, i int) {
	t.Helper()
	before, err := r.find.Get(bounded(t), r.options.Root)
	require.NoError(t, err)
	r.start(t, i)
	testcluster.Eventually(t, testTimeout, func() bool {
		resp, err := r.find.Get(bounded(t), r.options.Root+"standby/", clientv3.WithPrefix(), clientv3.WithMinCreateRev(before.Header.Revision+1))
		return err == nil && len(resp.Kvs) > 0
	}, "a replica follows")
}

// leader waits until a process other than those in but leads, and returns its index.
func (r *replicas) leader(t testing.TB, but ...int) (leader int) {
	t.Helper()
	testcluster.Eventually(t, testTimeout, func() bool {
		l, err := etcdlog.FindLeader(within(t, time.Second), r.find, &r.options)
		leader = slices.IndexFunc(r.args, func(a replicaArg) bool { return err == nil && a.Front == l.Addr })
		return leader >= 0 && !slices.Contains(but, leader)
	}, "a replica leads")
	return leader
}

// addrs returns the list of addresses for clients.
func (r *replicas) addrs() string {
	var addrs []string
	for _, a := range r.args {
		addrs = append(addrs, a.Front)
	}
	return strings.Join(addrs, ",")
}

// dial returns a client that knows the addresses of the processes.
func (r *replicas) dial(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Dial(within(t, testTimeout), r.addrs(), &store.DialOptions{Wait: true, LivenessTimeout: r.liveness})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// open returns a client that finds the leader in etcd.
func (r *replicas) open(t testing.TB, at string) *store.Store {
	t.Helper()
	return open(t, "etcd://"+at+"/"+strings.TrimSuffix(r.options.Root, "/"))
}

// schemes returns the URL schemes of a program that uses etcd.
func schemes() store.Schemes {
	all := store.Builtin()
	all["etcd"], all["etcds"] = etcdlog.Open, etcdlog.Open
	return all
}

func open(t testing.TB, rawurl string) *store.Store {
	t.Helper()
	s, err := schemes().Open(within(t, testTimeout), rawurl)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
