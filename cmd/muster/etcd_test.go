package main_test

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// etcd starts an etcd for the test, and returns its address.
func etcd(t *testing.T) (addr string) {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("NOT TESTED with etcd: apt-get install etcd-server")
	}
	addr = testcluster.Port(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, exe, "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error", "--logger", "zap")
	cmd.WaitDelay = time.Second
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return addr
}

// replica starts a process that serves the store in the etcd at the URL at.
func replica(t *testing.T, at string) *process {
	t.Helper()
	p := start(t, "serve", "--etcd", at, "--listen", "127.0.0.1:0")
	p.line(t, "muster://")
	return p
}

// TestReplicasReportTheirState checks that a standby reports in its metrics and at its health
// address that it is one, and that the leader lists the standbys.
func TestReplicasReportTheirState(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t) + "/jobs"
	begin := func() (p *process, addr, page, health string) {
		p = start(t, "serve", "--etcd", at, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--health", "127.0.0.1:0")
		_, health, _ = strings.Cut(p.complaint(t, `msg="serving health checks"`), "health=")
		_, page, _ = strings.Cut(p.complaint(t, "page="), "page=")
		return p, strings.TrimPrefix(p.line(t, "muster://"), "muster://"), page, strings.TrimSuffix(health, "/healthz")
	}
	leader, one, leading, _ := begin()
	leader.complaint(t, "msg=leading")
	standby, two, following, health := begin()
	checkGet(t, health+"/healthz", 200, "ok")
	checkGet(t, health+"/readyz", 503, "standby")
	text := numbersHave(t, following, "muster_replication_lag_entries")
	has(t, text, "muster_store_up 1", "muster_replication_leads 0", "muster_replication_takeovers_total 0", `muster_replication_lag_entries{standby="`+two+`"} 0`)
	checkGet(t, following+"status", 200, `"leads":false,"leader":"`+one+`","term":1,`)
	has(t, numbersHave(t, leading, "muster_replication_lag_entries"), "muster_store_up 1", "muster_replication_leads 1", `muster_replication_lag_entries{standby="`+two+`"} 0`)
	if r := run(t, "who", "--store", at); !strings.Contains(r.stdout, "\nleader "+one+", for ") || !strings.Contains(r.stdout, ", term 1; standby "+two+", up to date\n") {
		t.Errorf("%+v", r)
	}
	if r := run(t, "doctor", "--store", at); r.code != 0 || !strings.Contains(r.stdout, one+" leads, in term 1, for ") || !strings.Contains(r.stdout, "; 1 standby: "+two+"\n") {
		t.Errorf("%+v", r)
	}
	leader.signal(t, syscall.SIGKILL)
	standby.complaint(t, "msg=leading")
	testcluster.Eventually(t, time.Minute, func() bool {
		code, _ := answer(t, health+"/readyz")
		return code == 200
	}, "the standby is ready, as the leader")
	has(t, numbersHave(t, following, "muster_replication_leads 1"), "muster_replication_takeovers_total 1", "muster_store_keys ")
}
