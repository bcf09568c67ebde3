package etcdlog_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// replicaOf returns a replica in this process, which reaches etcd as in rawurl.
func replicaOf(t testing.TB, rawurl string) *etcdlog.Replica {
	t.Helper()
	u, err := url.Parse(rawurl)
	require.NoError(t, err)
	cluster, err := etcdlog.ParseURL(u)
	require.NoError(t, err)
	c, err := cluster.Client()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &etcdlog.Replica{Client: c, Options: etcdlog.Options{Root: cluster.Root}, Listener: testcluster.Listen(t)}
}

// TestOpenURL checks that the path of a URL is a root of etcd's keys: stores below different roots
// are separate.
func TestOpenURL(t *testing.T) {
	members := etcd(t)
	// No process listens at the first address.
	at := "etcd://" + testcluster.Port(t) + "," + members[0].client
	for _, path := range []string{"/jobs/a", "/jobs/b/", ""} {
		run(t, replicaOf(t, at+path))
	}
	a, again, b, top := open(t, at+"/jobs/a"), open(t, at+"/jobs/a/"), open(t, at+"/jobs/b"), open(t, at)
	require.NoError(t, a.Set(bounded(t), "key", []byte("value"), nil))
	has(t, again, "key", []byte("value"))
	for _, s := range []*store.Store{b, top} {
		_, err := s.Get(bounded(t), "key")
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	for _, key := range keysBelow(t, client(t, members), "\x00") {
		require.True(t, strings.HasPrefix(key, "jobs/a/") || strings.HasPrefix(key, "jobs/b/") || strings.HasPrefix(key, "muster/"), key)
	}
}

// TestBadURLs checks the error of each URL of testdata/urls.txt, which is returned at once.
func TestBadURLs(t *testing.T) {
	t.Setenv("MUSTER_ETCD_PASSWORD", "")
	datadriven.RunTest(t, "testdata/urls.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for rawurl := range strings.FieldsSeq(d.Input) {
			ctx := within(t, 5*time.Second)
			_, err := schemes().Open(ctx, rawurl)
			require.ErrorIs(t, err, store.ErrInvalid, rawurl)
			require.NoError(t, ctx.Err(), rawurl)
			fmt.Fprintln(&out, err)
		}
		return out.String()
	})
}

// TestNoLeader checks that Open waits for a leader until ctx ends, and that the error says what is
// missing.
func TestNoLeader(t *testing.T) {
	t.Parallel()
	members, silent := etcd(t), testcluster.Listen(t) // silent accepts connections, and answers nothing
	for rawurl, want := range map[string]string{
		"etcd://" + members[0].client + "/jobs":                                "the store has no leader",
		"etcd://" + testcluster.Port(t) + "," + testcluster.Port(t):            "connection refused",
		"etcd://me:hidden@" + testcluster.Port(t):                              "connection refused",
		"etcd://" + silent.Addr().String():                                     silent.Addr().String(),
		"etcd://me:hidden@" + silent.Addr().String():                           silent.Addr().String(),
		"etcds://" + members[0].client + "/jobs":                               members[0].client,
		"etcd://no-such-host.invalid:2379":                                     "no-such-host.invalid",
		"etcd://" + serve(t, new(store.Memory)) + "/a-store-is-no-etcd":        "etcd at",
		"etcd://me:hidden@" + serve(t, new(store.Memory)) + "/with-a-password": "etcd at",
	} {
		t.Run(rawurl, func(t *testing.T) {
			t.Parallel()
			ctx := within(t, 1500*time.Millisecond)
			_, err := schemes().Open(ctx, rawurl)
			end, _ := ctx.Deadline()
			late := time.Since(end)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "hidden")
			require.Less(t, late, 400*time.Millisecond)
			t.Log(err)
		})
	}
}

// TestUsers checks that, with authentication, only users with a name and a password have access,
// and only to the keys that they have rights to.
func TestUsers(t *testing.T) {
	members := etcd(t)
	for _, args := range []string{
		"user add root:secret", "user grant-role root root", "user add worker:hidden", "role add jobs",
		"role grant-permission jobs readwrite jobs/ --prefix=true", "user grant-role worker jobs", "auth enable",
	} {
		ctl(t, members, args)
	}
	at := members[0].client
	run(t, replicaOf(t, "etcd://worker:hidden@"+at+"/jobs"))
	s := open(t, "etcd://worker:hidden@"+at+"/jobs")
	require.NoError(t, s.Set(bounded(t), "key", []byte("value"), &store.SetOptions{TTL: time.Minute}))
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("hidden\n"), 0o600))
	has(t, open(t, "etcd://worker@"+at+"/jobs?password-file="+file), "key", []byte("value"))
	t.Setenv("MUSTER_ETCD_PASSWORD", "hidden")
	open(t, "etcd://worker@"+at+"/jobs")
	refused := []string{"etcd://worker:wrong@" + at + "/jobs", "etcd://" + at + "/jobs", "etcd://worker:hidden@" + at + "/others"}
	for _, rawurl := range refused {
		ctx := within(t, testTimeout)
		_, err := schemes().Open(ctx, rawurl)
		require.ErrorIs(t, err, store.ErrDenied, rawurl)
		require.NotContains(t, err.Error(), "hidden")
		require.NoError(t, ctx.Err(), rawurl) // at once, since waiting changes nothing
		t.Log(err)
	}
	t.Run("Python", func(t *testing.T) {
		require.Equal(t, "value", inPython(t, "etcd://worker@"+at+"/jobs?password-file="+file, "key"))
		for _, rawurl := range refused {
			require.Equal(t, "Denied", inPython(t, rawurl, "key"), rawurl)
		}
	})
	// Processes that would serve a store do not wait either.
	for _, rawurl := range refused[1:] { // with a wrong password there is no client
		ctx := within(t, testTimeout)
		err := replicaOf(t, rawurl).Run(ctx)
		require.Error(t, err, rawurl)
		require.NoError(t, ctx.Err(), rawurl)
		t.Log(err)
	}
}

func ctl(t *testing.T, members []*member, args string) {
	t.Helper()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		t.Skip("SKIPPED: there is no etcdctl: apt-get install etcd-client")
	}
	cmd := exec.CommandContext(bounded(t), "etcdctl", append([]string{"--endpoints=" + members[0].client, "--dial-timeout=20s"}, strings.Fields(args)...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", args, out)
}

// alsoClient replaces server.pem in dir by one that is for clients, too, signed by ca.pem there. A member
// of etcd with --client-cert-auth needs it, since its JSON gateway is a client of its own.
func alsoClient(t *testing.T, dir string) {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"))
	require.NoError(t, err)
	file := filepath.Join(dir, "server.pem")
	server, err := tls.LoadX509KeyPair(file, filepath.Join(dir, "server-key.pem"))
	require.NoError(t, err)
	server.Leaf.ExtKeyUsage = append(server.Leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	b, err := x509.CreateCertificate(rand.Reader, server.Leaf, ca.Leaf, server.Leaf.PublicKey, ca.PrivateKey)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b}), 0o600))
}

// TestTLS checks etcd members with TLS that require a certificate, and a store that does so, too.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{Hosts: []string{"127.0.0.1", "etcd.example"}, Names: []string{"worker"}})
	require.NoError(t, err)
	alsoClient(t, dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	secret := at("secret")
	require.NoError(t, os.WriteFile(secret, []byte("a secret of thirty-two characters\n"), 0o600))
	addr := testcluster.Port(t)
	etcd(t, "--listen-client-urls", "https://"+addr, "--advertise-client-urls", "https://"+addr,
		"--cert-file", at("server.pem"), "--key-file", at("server-key.pem"), "--trusted-ca-file", at("ca.pem"), "--client-cert-auth")
	etcds := "etcds://" + addr + "/p?ca=" + at("ca.pem") + "&cert=" + at("worker.pem") + "&key=" + at("worker-key.pem")
	proves, err := store.ReadSecret(secret)
	require.NoError(t, err)
	r := replicaOf(t, etcds)
	r.NewServer = func(m *store.Memory) (*store.Server, error) {
		c, err := (&store.TLSFiles{Cert: at("server.pem"), Key: at("server-key.pem")}).Server()
		return &store.Server{Engine: m, TLS: c, Access: []store.Access{{Secret: proves, Write: true}}}, err
	}
	run(t, r)
	rest := "&store-ca=" + at("ca.pem") + "&secret-file=" + secret
	require.NoError(t, open(t, etcds+rest).Set(bounded(t), "key", []byte("value"), nil))
	type access struct {
		rawurl string
		err    error // nil: it has access
	}
	testcluster.AtOnce(t, maps.All(map[string]access{
		"all":                     {etcds + rest, nil},
		"other names":             {etcds + "&server-name=etcd.example&store-server-name=etcd.example" + rest, nil},
		"without a secret":        {etcds + "&store-ca=" + at("ca.pem"), store.ErrDenied},
		"without the store's CA":  {etcds + "&secret-file=" + secret, store.ErrDenied},
		"wrong name of etcd":      {etcds + "&server-name=another.example" + rest, store.ErrUnavailable},
		"wrong name of the store": {etcds + "&store-server-name=another.example" + rest, store.ErrDenied},
		"without TLS":             {"etcd://" + addr + "/p", store.ErrUnavailable},
		"without etcd's CA":       {"etcds://" + addr + "/p", store.ErrUnavailable},
		"without a certificate":   {"etcds://" + addr + "/p?ca=" + at("ca.pem"), store.ErrUnavailable},
	}), func(t *testing.T, c access) {
		s, err := schemes().Open(within(t, 2*time.Second), c.rawurl)
		require.ErrorIs(t, err, c.err)
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
			has(t, s, "key", []byte("value"))
		}
		require.Equal(t, map[error]string{nil: "value", store.ErrDenied: "Denied", store.ErrUnavailable: "Unavailable"}[c.err], inPython(t, c.rawurl, "key"))
	})
}
