package main_test

import (
	"context"
	"encoding/json"
	"net"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
)

// etcd starts one of the test's own, and returns where it is.
func etcd(t *testing.T) (addr string) {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("NOT TESTED with etcd: apt-get install etcd-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, exe, "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error", "--logger", "zap")
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	return addr
}

// A store may be an etcd.
func TestStoreOfEtcd(t *testing.T) {
	t.Parallel()
	addr := etcd(t)
	at := "etcd://" + addr + "/jobs"
	run(t, "set", "--store", at, "key", "value").wants(t, 0, "", "")
	run(t, "get", "--store", at, "key").wants(t, 0, "value\n", "")
	run(t, "add", "--store", at, "n", "5").wants(t, 0, "5\n", "")
	run(t, "keys", "--store", at).wants(t, 0, "key\nn\n", "")
	run(t, "get", "--store", "etcd://"+addr+"/others", "key").wants(t, 3, "", "key")
	run(t, "get", "--store", "etcd://me:hidden@"+addr+"?mend=x", "key").wants(t, 2, "", "me:xxxxx@")
	run(t, "get", "--store", "etcd://127.0.0.1:1?mend=2s", "key").wants(t, 5, "", "no etcd at 127.0.0.1:1 (connection refused)")
	run(t, "get", "--store", "etcd://127.0.0.1:1,127.0.0.1:x", "key").wants(t, 2, "", "etcd://host:port,host:port")
	run(t, "get", "--store", "etcd://host", "key").wants(t, 2, "", "host is no host:port")
}

// Ranks that run and bench start may meet there.
func TestRanksMeetAtEtcd(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t) + "/jobs"
	r := run(t, "run", "-n", "2", "--no-prefix", "--store", at, "--", "sh", "-c", `echo $RANK $MUSTER_STORE $MASTER_PORT.`)
	if r.code != 0 || !strings.Contains(r.stdout, "0 "+at+" .\n") || !strings.Contains(r.stdout, "1 "+at+" .\n") {
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
	run(t, "run", "-n", "2", "--store", at, "--master-port", "7", "--", "true").wants(t, 2, "", "--master-port say nothing")
}

// Who shows who waits for whom at an etcd too, and nothing that an etcd does not know.
func TestWhoAtEtcd(t *testing.T) {
	t.Parallel()
	at := "etcd://" + etcd(t) + "/jobs"
	if r := run(t, "who", "--store", at); r.code != 0 || r.stdout != "nothing waits\n\n0 groups, 0 keys\n" {
		t.Errorf("%+v", r)
	}
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	e, err := etcdstore.Open(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(e)
	t.Cleanup(func() { _ = s.Close() })
	stuck(t, s, "jobs/train")
	r := run(t, "who", "--store", at, "--ranks")
	want := regexp.MustCompile(`^jobs/train waits for rank 1 \(pid 7 on node-b\): no call since it joined

 +(unknown|[0-9.]+ s)  jobs/train · barrier #1  \(1 of 2 have come\)
 +waits for rank 1 \(pid 7 on node-b\): no call since it joined

groups
  jobs/train \(generation [0-9]+\)  2 of 2 ranks, waits
    rank 0 +pid 7 on node-a  in barrier #1( for [0-9.]+ s)?
    rank 1 +pid 7 on node-b  no call since it joined

1 group, 0 keys
$`)
	if r.code != 0 || !want.MatchString(r.stdout) {
		t.Errorf("%+v", r)
	}
	var v status.View
	for deadline := time.Now().Add(limit); len(v.Waiting) == 0 || v.Waiting[0].For <= 0; { // until rank 0 has said since when
		v = status.View{}
		r = run(t, "who", "--store", at, "--json")
		if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.code != 0 || time.Now().After(deadline) {
			t.Fatalf("%v: %+v", err, r)
		}
	}
	if len(v.Blame) != 1 || v.Blame[0].Group != "jobs/train" || v.Blame[0].Rank != 1 || v.Blame[0].What != "barrier #1" || v.Blame[0].Heard != -1 ||
		v.Server == nil || v.Server.Sessions != -1 || v.Server.Rates != nil || v.Groups[0].Age != -1 {
		t.Errorf("%s", r.stdout)
	}
}

// The page of a store at an etcd, and its numbers.
func TestPageAtEtcd(t *testing.T) {
	t.Parallel()
	p := start(t, "page", "--store", "etcd://"+etcd(t)+"/jobs", "--http", "127.0.0.1:0")
	page := p.line(t, "http://127.0.0.1:")
	tells(t, page+"status", 200, `"up_seconds":-1`)
	tells(t, page+"metrics", 200, "muster_store_keys 0")
	p.signal(t, syscall.SIGINT)
	if r := p.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
