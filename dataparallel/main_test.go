package dataparallel_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
)

func TestMain(m *testing.M) {
	children.Run()
	testcluster.Leaks(m)
}

// soon is the time limit of every expected event, on a busy machine too.
const soon = 30 * time.Second

func bounded(t testing.TB) context.Context { return testcluster.Within(t, soon) }

var (
	within = testcluster.Within
	serve  = testcluster.Serve
)

// way is where ranks are, and how they reduce.
type way struct {
	name string
	host func(rank int) string
	alg  collective.Algorithm
	tls  bool // with certificates on both sides, for the store and between ranks

	sinks []testcluster.Events // by rank; nil: none
}

func together(int) string   { return "node" }
func apart(rank int) string { return fmt.Sprint("node ", rank) }

// unequal places ranks on hosts of one rank, two ranks, and all the others.
func unequal(rank int) string { return fmt.Sprint("node ", min((rank+1)/2, 2)) }

var ways = []way{
	{name: "memory", host: together},
	{name: "TCP", host: apart},
	{name: "ring", host: apart, alg: collective.Ring},
	{name: "unequal hosts", host: unequal, alg: collective.Hierarchical},
	{name: "TLS", host: apart, tls: true},
}

// rank is one rank of a test.
type rank struct {
	*testing.T
	*dataparallel.Strategy
	ctx  context.Context
	comm *collective.Comm
}

// ok reports an error; the rank continues, so that no other rank waits for it.
func (r *rank) ok(err error) bool { return assert.NoError(r.T, err, "rank %d", r.Rank()) }

// average averages one gradient.
func average[T tensor.Number](r *rank, name string, x ...T) []T {
	r.ok(r.AllReduceGradients(r.ctx, map[string]*tensor.Tensor{name: tensor.From(x)}))
	return x
}

// run runs f on n ranks.
func (w way) run(t *testing.T, n int, f func(r *rank)) {
	t.Helper()
	meet := w.meet(t)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			ctx := bounded(t)
			cfg := meet(i)
			cfg.Rank, cfg.Size, cfg.Host, cfg.Timeout = i, n, w.host(i), soon
			if w.sinks != nil {
				cfg.Trace = &w.sinks[i]
			}
			g, err := pgroup.Create(ctx, cfg)
			if !assert.NoError(t, err) {
				return
			}
			defer g.Close()
			c, err := collective.Open(ctx, g, &collective.Options{Algorithm: w.alg, Listen: "127.0.0.1"})
			if !assert.NoError(t, err) {
				return
			}
			defer c.Close()
			f(&rank{t, dataparallel.New(c, nil), ctx, c})
		})
	}
	all.Wait()
}

// meet returns the configuration of each rank: the store of testcluster.Store, or one that is
// served with TLS.
func (w way) meet(t *testing.T) func(rank int) pgroup.Config {
	if !w.tls {
		open := testcluster.Store(t)
		return func(int) pgroup.Config { return pgroup.Config{Store: open()} }
	}
	srv, files := withTLS(t)
	addr := serve(t, srv)
	return func(int) pgroup.Config { return pgroup.Config{Address: "muster://" + addr, TLS: files} }
}

// over runs a test in every way.
func over(t *testing.T, n int, f func(r *rank)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { w.run(t, n, f) })
	}
}

// withTLS returns a store that refuses clients without a certificate, and the files of one.
func withTLS(t *testing.T) (*store.Server, *store.TLSFiles) {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{})
	require.NoError(t, err)
	c, err := (&store.TLSFiles{CA: dir + "/ca.pem", Cert: dir + "/server.pem", Key: dir + "/server-key.pem", RequireClient: true}).Server()
	require.NoError(t, err)
	return &store.Server{Engine: new(store.Memory), TLS: c}, &store.TLSFiles{CA: dir + "/ca.pem", Cert: dir + "/client.pem", Key: dir + "/client-key.pem"}
}

// fails checks that err matches target, and what it says. It does not end a rank, so that no other waits for it.
func fails(t testing.TB, err, target error, says string) {
	t.Helper()
	assert.ErrorIs(t, err, target)
	assert.ErrorContains(t, err, says)
}

// url returns the URL of a store for the test.
func url(t testing.TB) string {
	if url := testcluster.StoreURL(); url != "" {
		return url
	}
	return "muster://" + serve(t, &store.Server{Engine: new(store.Memory)})
}

// worker returns the configuration of a worker of a job of least to most workers.
func worker(id string, least, most int) membership.Config {
	return membership.Config{Job: "train", ID: id, Min: least, Max: most}
}

// register registers a worker that does not take part.
func register(t testing.TB, at, id string, least, most int) (*store.Store, *membership.Member) {
	t.Helper()
	s, err := store.Open(bounded(t), at)
	require.NoError(t, err)
	m, err := membership.Join(bounded(t), s, worker(id, least, most))
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = m.Close()
		_ = s.Close()
	})
	return s, m
}

// newNode returns a node that is closed when the test ends.
func newNode(t *testing.T, at, id string, least, most int) *dataparallel.WorkerNode {
	n := &dataparallel.WorkerNode{Address: at, Worker: worker(id, least, most), Timeout: soon}
	t.Cleanup(func() { assert.NoError(t, n.Close()) })
	return n
}

// start starts all nodes at once.
func start(t *testing.T, nodes ...*dataparallel.WorkerNode) {
	t.Helper()
	each(nodes, func(n *dataparallel.WorkerNode) { assert.NoError(t, n.Start(bounded(t))) })
	require.False(t, t.Failed())
}

// each calls f for all nodes at once.
func each(nodes []*dataparallel.WorkerNode, f func(n *dataparallel.WorkerNode)) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() { f(n) })
	}
	all.Wait()
}
