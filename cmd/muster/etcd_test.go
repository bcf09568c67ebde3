package main_test

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
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

// replica starts a process that serves the store in the etcd at the URL at. It returns the process
// and its address.
func replica(t *testing.T, at string) (p *process, addr string) {
	t.Helper()
	p = start(t, "serve", "--etcd", at, "--listen", "127.0.0.1:0")
	return p, strings.TrimPrefix(p.line(t, "muster://"), "muster://")
}

// TestStoreInEtcd checks that clients find a store in an etcd by the URL of the etcd, and by the
// addresses of the processes that may serve it.
func TestStoreInEtcd(t *testing.T) {
	t.Parallel()
	addr := etcd(t)
	at := "etcd://" + addr + "/jobs"
	ones, one := replica(t, at)
	ones.complaint(t, "msg=leading")
	twos, two := replica(t, at)
	run(t, "set", "--store", at, "key", "value").wants(t, 0, "", "")
	run(t, "get", "--store", at, "key").wants(t, 0, "value\n", "")
	run(t, "add", "--store", "muster://"+two+","+one, "n", "5").wants(t, 0, "5\n", "")
	run(t, "keys", "--store", at).wants(t, 0, "key\nn\n", "")

	ones.signal(t, syscall.SIGKILL)
	run(t, "add", "--store", "muster://"+one+","+two, "n", "5").wants(t, 0, "10\n", "")
	run(t, "get", "--store", at, "key").wants(t, 0, "value\n", "")
	_, three := replica(t, at)
	twos.signal(t, syscall.SIGTERM)
	if r := twos.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
	run(t, "get", "--store", "muster://"+two+","+three, "n").wants(t, 0, "10\n", "")

	run(t, "get", "--store", "etcd://"+addr+"/others", "key").wants(t, 5, "", "no process serves the store in the etcd at "+addr)
	run(t, "get", "--store", "etcd://me:hidden@"+addr+"?unknown=x", "key").wants(t, 2, "", "me:xxxxx@")
	run(t, "get", "--store", "etcd://127.0.0.1:1,127.0.0.1:x", "key").wants(t, 2, "", "etcd://host:port,host:port")
	run(t, "get", "--store", "etcd://host", "key").wants(t, 2, "", "host is not host:port")
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

// TestBackupOfAStoreInEtcd checks that a backup of a store in an etcd can be restored below another
// root, but not where a store exists.
func TestBackupOfAStoreInEtcd(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t)
	replica(t, at+"/jobs")
	run(t, "set", "--store", at+"/jobs", "key", "value").wants(t, 0, "", "")
	file := filepath.Join(t.TempDir(), "backup")
	run(t, "backup", "--store", at+"/jobs", file).wants(t, 0, "", "bytes")
	run(t, "restore", file, "--etcd", at+"/jobs").wants(t, 1, "", "/jobs: there is a store already: name another root")
	run(t, "restore", file, "--etcd", at+"/again").wants(t, 0, "muster serve --etcd "+at+"/again\n", "")
	replica(t, at+"/again")
	run(t, "get", "--store", at+"/again", "key").wants(t, 0, "value\n", "")
	run(t, "restore", file, "--etcd", at+"/again", "--data", "x").wants(t, 2, "", "one of them")
	run(t, "restore", file, "--etcd", "redis://a:1").wants(t, 2, "", "not a URL of the form etcd://")
	run(t, "restore", file+"x", "--etcd", at+"/other").wants(t, 1, "", "no such file")
}

// TestRelayOfAStoreInEtcd checks that a relay gets the leader's address from etcd, so that a call
// through it survives a takeover.
func TestRelayOfAStoreInEtcd(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t) + "/jobs"
	first, _ := replica(t, at)
	first.complaint(t, "msg=leading")
	replica(t, at)
	_, near := relay(t, "--store", at)
	steps(t, near, []step{{args: "add n 2", stdout: "2\n"}})
	waiting := start(t, "wait", "--store", near, "key", "--timeout", "60s")
	testcluster.Eventually(t, time.Minute, func() bool {
		return strings.Contains(run(t, "who", "--store", at).stdout, "key")
	}, "the call waits at the store")
	first.signal(t, syscall.SIGKILL)
	run(t, "set", "--store", at, "key", "value").wants(t, 0, "", "")
	waiting.wait(t).wants(t, 0, "", "")
	steps(t, near, []step{{args: "add n 2", stdout: "4\n"}})
}

// TestRanksMeetAtEtcd checks that the ranks of run and bench can meet at a store in an etcd.
func TestRanksMeetAtEtcd(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t) + "/jobs"
	replica(t, at)
	r := run(t, "run", "-n", "2", "--no-prefix", "--store", at, "--", "sh", "-c", `echo $RANK $MUSTER_STORE.`)
	if r.code != 0 || !strings.Contains(r.stdout, "0 "+at+".\n") || !strings.Contains(r.stdout, "1 "+at+".\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
	r = run(t, "bench", "-n", "2", "--time", "50ms", "--cases", "barrier", "--json", "--store", at)
	var all struct {
		Host    string
		Results []struct{ Count int }
	}
	if err := json.Unmarshal([]byte(r.stdout), &all); err != nil || all.Host != at || len(all.Results) != 1 || all.Results[0].Count == 0 {
		t.Errorf("%v: exit code %d, stdout %q, stderr %q", err, r.code, r.stdout, r.stderr)
	}
	p := reportOf(t, run(t, "run", "-n", "2", "--no-prefix", "--store", at, "--", self(t), "doctor", "--json"))
	if !strings.Contains(p.text("group", "ok"), "2 ranks have met") || p.Problems > 0 {
		t.Errorf("%+v", p)
	}
	run(t, "run", "-n", "2", "--store", "mem://", "--", "true").wants(t, 2, "", "one of its own")
	run(t, "run", "-n", "2", "--store", "redis://h:1", "--", "true").wants(t, 2, "", "redis:// is not known")
	run(t, "run", "-n", "2", "--store", at, "--master-port", "7", "--", "true").wants(t, 2, "", "--master-port have no effect")
}
