package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

// etcd starts an etcd that requires client certificates of k, and ends with the test. It returns its address.
func etcd(t *testing.T, k keys) (addr string) {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("SKIPPED: no etcd here (apt-get install etcd-server)")
	}
	addr = testcluster.Port(t)
	testcluster.Launch(t, nil, exe, "--data-dir", t.TempDir(), "--listen-client-urls", "https://"+addr, "--advertise-client-urls", "https://"+addr,
		"--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error", "--logger", "zap",
		"--cert-file", k.at("server.pem"), "--key-file", k.at("server-key.pem"), "--trusted-ca-file", k.at("ca.pem"), "--client-cert-auth")
	return addr
}

// goOn starts the processes of one store, and checks that it continues while each is replaced, and after the
// first one is killed.
func goOn(t *testing.T, client *server, grace time.Duration, start ...func() *server) {
	t.Helper()
	var all []*server
	for _, f := range start {
		all = append(all, f())
	}
	n := 0
	adds := func() {
		n++
		assert.Equal(t, fmt.Sprint(n), client.call(t, "add", "n", "1", "--timeout", "30s"))
	}
	adds()
	for i := len(all) - 1; i >= 0; i-- { // in the order of a stateful set
		all[i].stop(t, grace)
		all[i] = start[i]()
		adds()
	}
	require.NoError(t, all[0].cmd.Process.Kill())
	adds()
}

// TestKubernetesWithEtcd checks that the pods of the stateful set serve one store from an etcd with
// TLS, while they are replaced one by one and killed, and that the pods of the job meet there.
func TestKubernetesWithEtcd(t *testing.T) {
	k := makeKeys(t)
	at := etcd(t, k)
	objects := documents(t, "kubernetes/store-etcd.yaml", "Service", "PodDisruptionBudget", "StatefulSet")
	p, budget := newPods(t, k, objects[0], objects[2]), objects[1]
	require.Equal(t, os.TempDir(), p.mounts["scratch"])
	shown := k.folder(t, map[string]string{"ca.crt": "ca.pem", "tls.crt": "etcd.pem", "tls.key": "etcd-key.pem"})
	require.Equal(t, "POD_NAME", p.container().Env[0].Name)

	url := p.here(regexp.MustCompile(`(?m)^# (muster://.*)$`).FindStringSubmatch(read(t, "kubernetes/store-etcd.yaml"))[1])
	var start []func() *server
	for i := range p.set.Spec.Replicas {
		addr := testcluster.Port(t)
		start = append(start, func() *server {
			return p.start(t, "etcd-client.etcd:2379", at, "$(POD_NAME)."+p.service.Metadata.Name+":7070", addr, "--listen=:7070", "--listen="+addr, p.mounts["etcd"], shown)
		})
		name := fmt.Sprintf("%s-%d.%s:7070", p.set.Metadata.Name, i, p.service.Metadata.Name)
		require.Contains(t, url, name)
		url = strings.ReplaceAll(url, name, addr)
	}
	client := &server{url: url, secret: filepath.Join(p.secret, "secret"), ca: filepath.Join(p.tls, "ca.crt")}
	goOn(t, client, p.grace(), start...)
	checkJob(t, client, "muster://muster-0.muster:7070")

	labels := p.set.Spec.Template.Metadata.Labels
	assert.Equal(t, budget.Spec.Selector["matchLabels"], labels)
	assert.Equal(t, 1, budget.Spec.MaxUnavailable)
	assert.Equal(t, labels, p.set.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
}

// TestSystemdWithEtcd checks that the unit's command serves one store on three hosts, which are
// simulated by processes.
func TestSystemdWithEtcd(t *testing.T) {
	k := makeKeys(t)
	at := etcd(t, k)
	u := unit(read(t, "systemd/muster-etcd.service"))
	dir := u.credentials(t, k)
	url := strings.NewReplacer("etcd-1:2379,etcd-2:2379,etcd-3:2379", at, "/run/credentials/muster-etcd.service", dir).Replace(u.find(t, `#   MUSTER_ETCD=(.*)`))
	var start []func() *server
	var addrs []string
	for range 3 {
		addr := testcluster.Port(t)
		addrs = append(addrs, addr)
		start = append(start, func() *server {
			return serve(t, u.command(t, "${MUSTER_ETCD}", url, "${MUSTER_LISTEN}", addr, "%d", dir, "$MUSTER_SERVE_ARGS", ""))
		})
	}
	client := &server{url: "muster://" + strings.Join(addrs, ","), secret: k.at("secret"), ca: k.at("ca.pem")}
	goOn(t, client, testTimeout, start...)
	verify(t, "muster-etcd.service")
}
