package main_test

import (
	"context"
	"encoding/json"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
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
	run(t, "get", "--store", "etcd://127.0.0.1:1?mend=10ms", "key").wants(t, 5, "", "no etcd at 127.0.0.1:1 (connection refused)")
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
