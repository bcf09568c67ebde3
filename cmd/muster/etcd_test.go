package main_test

import (
	"os/exec"
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
)

// etcd starts an etcd for the test, and returns its address.
func etcd(t *testing.T) (addr string) {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("SKIPPED: there is no etcd: apt-get install etcd-server")
	}
	addr = testcluster.Port(t)
	testcluster.Launch(t, nil, exe, "--data-dir", t.TempDir(), "--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error", "--logger", "zap")
	return addr
}

// replica starts a process that serves the store in the etcd at the URL at.
func replica(t *testing.T, at string) *process {
	t.Helper()
	p := start(t, "serve", "--etcd", at, "--listen", "127.0.0.1:0")
	p.line(t, "muster://")
	return p
}
