package main_test

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"time"
)

// A store may be an etcd: here one of the test's own.
func TestStoreOfEtcd(t *testing.T) {
	t.Parallel()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("NOT TESTED with etcd: apt-get install etcd-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
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
	at := "etcd://" + addr + "/jobs"
	run(t, "set", "--store", at, "key", "value").wants(t, 0, "", "")
	run(t, "get", "--store", at, "key").wants(t, 0, "value\n", "")
	run(t, "add", "--store", at, "n", "5").wants(t, 0, "5\n", "")
	run(t, "keys", "--store", at).wants(t, 0, "key\nn\n", "")
	run(t, "get", "--store", "etcd://"+addr+"/others", "key").wants(t, 3, "", "key")
	run(t, "get", "--store", "etcd://me:hidden@"+addr+"?mend=x", "key").wants(t, 1, "", "me:xxxxx@")
	run(t, "get", "--store", "etcd://127.0.0.1:1?mend=10ms", "key").wants(t, 5, "", "no etcd at 127.0.0.1:1")
}
