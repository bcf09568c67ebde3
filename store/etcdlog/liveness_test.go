package etcdlog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store/etcdlog"
)

// TestEndedProcess checks that a standby detects the end of the leader's process at once, and does
// not mistake other events for it.
func TestEndedProcess(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		do    func(p *etcdlog.Process, front *testcluster.Proxy)
		ended bool
	}{
		"it ends":                        {func(p *etcdlog.Process, _ *testcluster.Proxy) { p.Close() }, true},
		"its connection breaks":          {func(_ *etcdlog.Process, front *testcluster.Proxy) { front.Cut(testcluster.RST) }, false},
		"its connection breaks for good": {func(_ *etcdlog.Process, front *testcluster.Proxy) { front.Blackhole(true); front.Cut(testcluster.RST) }, false},
		"it is silent":                   {func(_ *etcdlog.Process, front *testcluster.Proxy) { front.Blackhole(true) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := etcdlog.NewProcess(t)
			t.Cleanup(p.Close)
			front := testcluster.NewProxy(t, p.Leader.LivenessAddr)
			l := p.Leader
			l.LivenessAddr = front.Addr()
			ended := etcdlog.Observe(t, l)
			testcluster.Eventually(t, testTimeout, func() bool { return p.Greeted() > 0 }, "the standby connects")
			x.do(p, front)
			require.Equal(t, x.ended, noticed(ended, x.ended))
		})
	}
	p := etcdlog.NewProcess(t)
	p.Close()
	require.False(t, noticed(etcdlog.Observe(t, p.Leader), false), "a process that was never reached may be behind a firewall")
	require.Zero(t, p.Greeted())
}

// noticed reports whether the end of a process is noticed in time, if it has ended, or at the next
// attempt to connect.
func noticed(end <-chan struct{}, ended bool) bool {
	limit := 1500 * time.Millisecond // longer than the pause before the next attempt
	if ended {
		limit = testTimeout
	}
	select {
	case <-end:
		return true
	case <-time.After(limit):
		return false
	}
}
