package etcdlog_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

func TestMain(m *testing.M) {
	testcluster.Children{"replica": childReplica}.Run()
	testcluster.Leaks(m)
}

// testTimeout is the timeout of operations that take a moment on a busy machine.
const testTimeout = 30 * time.Second

// bounded returns the test's context with a timeout.
func bounded(t testing.TB) context.Context { return testcluster.Within(t, 4*testTimeout) }

var within = testcluster.Within

// member is an etcd server of the tests, on loopback, on ports that were free.
type member struct {
	name         string
	client, peer string // host:port
	front        string // address at which the other members reach peer
	dir          string
	args         []string
	*launch.Process
}

// executable returns the etcd binary of the tests: MUSTER_TEST_ETCD, or the installed one.
func executable() string { return cmp.Or(os.Getenv("MUSTER_TEST_ETCD"), "etcd") }

// etcd starts a cluster of one member, with additional flags, that ends with the test. Its leases
// have whole seconds, and at least one.
func etcd(t testing.TB, flags ...string) []*member {
	t.Helper()
	return etcdBehind(t, 1, nil, flags...)
}

// etcdBehind is etcd with n members, which reach each other at the addresses that front returns; nil:
// at their own.
func etcdBehind(t testing.TB, n int, front func(peer string) string, flags ...string) []*member {
	t.Helper()
	if _, err := exec.LookPath(executable()); err != nil {
		t.Skip("SKIPPED: there is no etcd: apt-get install etcd-server, or set MUSTER_TEST_ETCD, as to what .ci/etcd prints")
	}
	members := make([]*member, n)
	var peers []string
	for i := range members {
		members[i] = &member{name: fmt.Sprint("m", i), client: testcluster.Port(t), peer: testcluster.Port(t), dir: testcluster.Scratch(t)}
		if members[i].front = members[i].peer; front != nil {
			members[i].front = front(members[i].peer)
		}
		peers = append(peers, members[i].name+"=http://"+members[i].front)
	}
	for _, m := range members {
		m.args = append([]string{
			"--name", m.name, "--data-dir", filepath.Join(m.dir, "data"), "--log-level", "error", "--logger", "zap",
			"--listen-client-urls", "http://" + m.client, "--advertise-client-urls", "http://" + m.client,
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.front,
			"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", "new",
			"--heartbeat-interval", "50", "--election-timeout", "500", "--quota-backend-bytes", fmt.Sprint(8 << 30),
		}, flags...)
		m.start(t)
	}
	return members
}

// start starts m. After a kill, m has the data that it had.
func (m *member) start(t testing.TB) {
	t.Helper()
	m.Process = testcluster.Launch(t, []string{"GOMAXPROCS=2"}, executable(), m.args...)
}

func addresses(members []*member) (addrs []string) {
	for _, m := range members {
		addrs = append(addrs, m.client)
	}
	return addrs
}

var roots atomic.Uint64

// newRoot returns the root of a new, empty store.
func newRoot() string { return fmt.Sprintf("test-%d/", roots.Add(1)) }

// client returns an etcd client that is closed at the end of the test.
func client(t testing.TB, members []*member) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addresses(members), DialTimeout: time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// lead returns a store that this process leads.
func lead(t testing.TB, c *clientv3.Client, o *etcdlog.Options) *store.Memory {
	t.Helper()
	return standing(t, c, o)().memory
}
