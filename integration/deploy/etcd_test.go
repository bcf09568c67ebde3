package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
)

// secured is an etcd that requires client certificates, together with the files of its clients and
// of the store.
type secured struct {
	addr string
	dir  string // ca.pem, server.pem, server-key.pem, etcd.pem, etcd-key.pem, secret
}

// etcd starts an etcd, which ends with the test.
func etcd(t *testing.T) *secured {
	t.Helper()
	exe, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("SKIPPED: no etcd here (apt-get install etcd-server)")
	}
	e := &secured{addr: testcluster.Port(t), dir: t.TempDir()}
	_, err = certs.Make(e.dir, certs.Options{Hosts: []string{"127.0.0.1"}, Names: []string{"etcd"}})
	require.NoError(t, err)
	secretFile(t, e.dir)
	at := func(name string) string { return filepath.Join(e.dir, name) }
	cmd := exec.Command(exe, "--data-dir", t.TempDir(), "--listen-client-urls", "https://"+e.addr, "--advertise-client-urls", "https://"+e.addr,
		"--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error", "--logger", "zap",
		"--cert-file", at("server.pem"), "--key-file", at("server-key.pem"), "--trusted-ca-file", at("ca.pem"), "--client-cert-auth")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return e
}

// folder creates a directory with copies of files of e, under the given names.
func (e *secured) folder(t *testing.T, names map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range names {
		b, err := os.ReadFile(filepath.Join(e.dir, from))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	return dir
}

// replicas are the processes of one store, and functions that start them.
type replicas struct {
	start []func() *server
	all   []*server
	url   string
}

// goOn checks that the store continues while each process is replaced, and after the first one is
// killed.
func (r *replicas) goOn(t *testing.T, exe, secret string, grace time.Duration) {
	t.Helper()
	client := &server{url: r.url}
	assert.Equal(t, "1", client.call(t, exe, secret, "add", "n", "1", "--timeout", "30s"))
	for i := len(r.all) - 1; i >= 0; i-- { // in the order of a stateful set
		r.all[i].stop(t, grace)
		r.all[i] = r.start[i]()
		assert.Equal(t, fmt.Sprint(len(r.all)-i+1), client.call(t, exe, secret, "add", "n", "1", "--timeout", "30s"))
	}
	require.NoError(t, r.all[0].cmd.Process.Kill())
	assert.Equal(t, "5", client.call(t, exe, secret, "add", "n", "1", "--timeout", "30s"))
}

// TestKubernetesWithEtcd checks that the pods of the stateful set serve one store from an etcd with
// TLS, while they are replaced one by one and killed, and that the pods of the job meet there.
func TestKubernetesWithEtcd(t *testing.T) {
	objects := documents(t, "kubernetes/store-etcd.yaml", "Service", "PodDisruptionBudget", "StatefulSet")
	service, budget, set := objects[0], objects[1], objects[2]
	exe, e := testcluster.Command(t), etcd(t)
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.Name] = m.MountPath
	}
	require.Equal(t, os.TempDir(), mounts["scratch"])
	own := e.folder(t, map[string]string{"secret": "secret"})
	tls := e.folder(t, map[string]string{"ca.crt": "ca.pem", "tls.crt": "server.pem", "tls.key": "server-key.pem"})
	shown := e.folder(t, map[string]string{"ca.crt": "ca.pem", "tls.crt": "etcd.pem", "tls.key": "etcd-key.pem"})
	require.Equal(t, "POD_NAME", c.Env[0].Name)

	r := &replicas{url: regexp.MustCompile(`(?m)^# (muster://.*)$`).FindStringSubmatch(read(t, "kubernetes/store-etcd.yaml"))[1]}
	for i := range set.Spec.Replicas {
		addr := testcluster.Port(t)
		here := strings.NewReplacer(
			"etcd-client.etcd:2379", e.addr, "$(POD_NAME)."+service.Metadata.Name+":7070", addr, "--listen=:7070", "--listen="+addr,
			mounts["etcd"], shown, mounts["tls"], tls, mounts["secret"], own,
		)
		var args []string
		for _, a := range c.Args {
			args = append(args, here.Replace(a))
		}
		r.start = append(r.start, func() *server {
			s := serve(t, exec.Command(exe, slices.Clone(args)...))
			assert.Equal(t, 200, s.probe(t, c.LivenessProbe))
			assert.Equal(t, 200, s.probe(t, c.ReadinessProbe), "a rolling update waits for it, a standby's too")
			return s
		})
		r.all = append(r.all, r.start[i]())
		name := fmt.Sprintf("%s-%d.%s:7070", set.Metadata.Name, i, service.Metadata.Name)
		require.Contains(t, r.url, name)
		r.url = strings.ReplaceAll(r.url, name, addr)
	}
	r.url = strings.NewReplacer(mounts["tls"], tls, mounts["secret"], own).Replace(r.url)
	secret := filepath.Join(own, "secret")
	r.goOn(t, exe, secret, time.Duration(pod.TerminationGracePeriodSeconds)*time.Second)
	checkJob(t, &server{url: r.url, ca: filepath.Join(tls, "ca.crt")}, secret, "muster://muster-0.muster:7070")

	assert.Equal(t, service.Metadata.Name, set.Spec.ServiceName)
	assert.Equal(t, service.Spec.Selector, set.Spec.Template.Metadata.Labels)
	assert.Equal(t, budget.Spec.Selector["matchLabels"], set.Spec.Template.Metadata.Labels)
	assert.Equal(t, 1, budget.Spec.MaxUnavailable)
	assert.Equal(t, set.Spec.Template.Metadata.Labels, pod.TopologySpreadConstraints[0].LabelSelector.MatchLabels)
}

// TestSystemdWithEtcd checks that the unit's command serves one store on three hosts, which are
// simulated by processes.
func TestSystemdWithEtcd(t *testing.T) {
	exe, e := testcluster.Command(t), etcd(t)
	unit := strings.ReplaceAll(read(t, "systemd/muster-etcd.service"), "ExecStart=muster", "ExecStart="+exe)
	files := map[string]string{ // in /etc/muster
		"secret": "secret", "server.pem": "server.pem", "server-key.pem": "server-key.pem", "etcd-ca.pem": "ca.pem", "etcd.pem": "etcd.pem", "etcd-key.pem": "etcd-key.pem",
	}
	credentials := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^LoadCredential=(\S+):/etc/muster/(\S+)$`).FindAllStringSubmatch(unit, -1) {
		credentials[m[1]] = files[m[2]]
	}
	require.Len(t, credentials, len(files))
	dir := e.folder(t, credentials)
	at := regexp.MustCompile(`(?m)^#   MUSTER_ETCD=(.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, at)
	line := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	require.NotNil(t, line)
	url := strings.NewReplacer("etcd-1:2379,etcd-2:2379,etcd-3:2379", e.addr, "/run/credentials/muster-etcd.service", dir).Replace(at[1])

	r := &replicas{}
	var addrs []string
	for range 3 {
		addr := testcluster.Port(t)
		args := strings.Fields(strings.NewReplacer("${MUSTER_ETCD}", url, "${MUSTER_LISTEN}", addr, "%d", dir, "$MUSTER_SERVE_ARGS", "").Replace(line[1]))
		r.start = append(r.start, func() *server { return serve(t, exec.Command(args[0], args[1:]...)) })
		addrs = append(addrs, addr)
		r.all = append(r.all, r.start[len(r.start)-1]())
	}
	r.url = "muster://" + strings.Join(addrs, ",") + "?ca=" + filepath.Join(e.dir, "ca.pem")
	r.goOn(t, exe, filepath.Join(dir, "secret"), testTimeout)
	verify(t, exe, "muster-etcd.service")
}
