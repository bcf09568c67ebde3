package etcdstore_test

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// schemes are those of a program that uses etcd.
func schemes() store.Schemes {
	all := store.Builtin()
	all["etcd"], all["etcds"] = etcdstore.Open, etcdstore.Open
	return all
}

func open(t *testing.T, rawurl string) *store.Store {
	t.Helper()
	s, err := schemes().Open(bounded(t), rawurl)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What a URL's path names is a root of etcd's keys: others see nothing of it, and it nothing of theirs.
func TestOpenURL(t *testing.T) {
	members := etcd(t)
	at := "etcd://" + members[0].client + "," + freePort(t)
	a, again, b := open(t, at+"/jobs/a"), open(t, at+"/jobs/a/"), open(t, at+"/jobs/b?session=2s&mend=5s")
	require.NoError(t, a.Set(bounded(t), "key", []byte("value"), nil))
	v, err := again.Get(bounded(t), "key")
	require.NoError(t, err)
	require.Equal(t, "value", string(v))
	_, err = b.Get(bounded(t), "key")
	require.ErrorIs(t, err, store.ErrNotFound)

	resp, err := plain(t, members).Get(bounded(t), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		require.True(t, strings.HasPrefix(string(kv.Key), "jobs/"), "%s", kv.Key)
	}
}

// plain is a client of etcd's own.
func plain(t testing.TB, members []*member) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: addresses(members), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestBadURLs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("from a file\n"), 0o600))
	t.Setenv("MUSTER_ETCD_PASSWORD", "")
	for rawurl, want := range map[string]string{
		"etcd:///prefix":                             "no host",
		"etcd://a":                                   "a is no host:port",
		"etcd://a:1,b/p":                             "not a URL",
		"etcd://a:1#x":                               "#fragment",
		"etcd://a:1?sesion=5s":                       `unknown parameter "sesion"`,
		"etcd://a:1?session=5":                       "session=5 is no time",
		"etcd://a:1?mend=-1s":                        "mend=-1s is no time",
		"etcd://a:1?session=1s&session=2s":           "twice",
		"etcd://a:1?ca=x":                            "say etcds://",
		"etcds://a:1?ca=/no/such/file":               "/no/such/file",
		"etcds://a:1?cert=x":                         "go together",
		"etcd://a:1?password-file=x":                 "for a user",
		"etcd://me@a:1":                              "needs a name and a password",
		"etcd://me:hidden@a:1?password-file=" + file: "a password and a password-file",
		"etcd://me@a:1?password-file=/no/such/file":  "/no/such/file",
	} {
		_, err := schemes().Open(bounded(t), rawurl)
		require.ErrorIs(t, err, store.ErrInvalid, rawurl)
		require.ErrorContains(t, err, want, rawurl)
		require.NotContains(t, err.Error(), "hidden")
	}
}

func TestNobodyThere(t *testing.T) {
	u, err := url.Parse("etcd://me:hidden@" + freePort(t) + "," + freePort(t) + "?mend=300ms")
	require.NoError(t, err)
	_, err = etcdstore.Open(bounded(t), u)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.NotContains(t, err.Error(), "hidden")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = etcdstore.Dial(ctx, []string{freePort(t)}, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "connection refused") // not only that there was no more time
	_, err = etcdstore.Dial(ctx, nil, nil)
	require.ErrorIs(t, err, store.ErrInvalid)
}

// With authentication only who has a name and a password is let in, and sees only what it may.
func TestUsers(t *testing.T) {
	members := etcd(t)
	for _, args := range []string{
		"user add root:secret", "user grant-role root root", "user add worker:hidden", "role add jobs",
		"role grant-permission jobs readwrite jobs/ --prefix=true", "user grant-role worker jobs", "auth enable",
	} {
		ctl(t, members, args)
	}
	at := members[0].client
	s := open(t, "etcd://worker:hidden@"+at+"/jobs")
	require.NoError(t, s.Set(bounded(t), "key", []byte("value"), &store.SetOptions{TTL: time.Minute}))
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("hidden\n"), 0o600))
	v, err := open(t, "etcd://worker@"+at+"/jobs?password-file="+file).Get(bounded(t), "key")
	require.NoError(t, err)
	require.Equal(t, "value", string(v))
	t.Setenv("MUSTER_ETCD_PASSWORD", "hidden")
	open(t, "etcd://worker@"+at+"/jobs")
	for _, rawurl := range []string{"etcd://worker:wrong@" + at + "/jobs", "etcd://" + at + "/jobs", "etcd://worker:hidden@" + at + "/others"} {
		_, err := schemes().Open(bounded(t), rawurl)
		require.ErrorIs(t, err, store.ErrDenied, rawurl)
		require.NotContains(t, err.Error(), "hidden")
	}
}

func ctl(t *testing.T, members []*member, args string) {
	t.Helper()
	if _, err := exec.LookPath("etcdctl"); err != nil {
		t.Skip("there is no etcdctl: apt-get install etcd-client")
	}
	cmd := exec.CommandContext(bounded(t), "etcdctl", append([]string{"--endpoints=" + members[0].client, "--dial-timeout=20s"}, strings.Fields(args)...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", args, out)
}

// Members with TLS want a certificate, and are to have one.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{Hosts: []string{"127.0.0.1"}, Names: []string{"worker"}})
	require.NoError(t, err)
	at := func(name string) string { return filepath.Join(dir, name) }
	addr := freePort(t)
	etcd(t, "--listen-client-urls", "https://"+addr, "--advertise-client-urls", "https://"+addr,
		"--cert-file", at("server.pem"), "--key-file", at("server-key.pem"), "--trusted-ca-file", at("ca.pem"), "--client-cert-auth")
	s := open(t, "etcds://"+addr+"/p?ca="+at("ca.pem")+"&cert="+at("worker.pem")+"&key="+at("worker-key.pem"))
	require.NoError(t, s.Set(bounded(t), "key", nil, nil))
	for _, rawurl := range []string{"etcd://" + addr, "etcds://" + addr, "etcds://" + addr + "?ca=" + at("ca.pem")} {
		_, err := schemes().Open(bounded(t), rawurl+map[bool]string{true: "&", false: "?"}[strings.Contains(rawurl, "?")]+"mend=300ms")
		require.ErrorIs(t, err, store.ErrUnavailable, rawurl)
	}
}

// Limits of etcd's are told by the errors of every store.
func TestLimits(t *testing.T) {
	members := etcd(t, "--max-request-bytes", "100000", "--quota-backend-bytes", "400000")
	s := open(t, "etcd://"+members[0].client)
	err := s.Set(bounded(t), "large", make([]byte, 200_000), nil)
	require.ErrorIs(t, err, store.ErrTooLarge)
	require.ErrorContains(t, err, `set "large"`)
	require.ErrorContains(t, err, "--max-request-bytes")
	require.NoError(t, s.Set(bounded(t), "key", []byte("value"), nil))
	for range 100 {
		if err = s.Set(bounded(t), "more", make([]byte, 50_000), nil); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, store.ErrFull)
	require.ErrorContains(t, err, "quota")
	v, err := s.Get(bounded(t), "key")
	require.NoError(t, err)
	require.Equal(t, "value", string(v))
}

// A watch from before a compaction hears so; one that is open goes on.
func TestCompaction(t *testing.T) {
	members := etcd(t)
	s, c := open(t, "etcd://"+members[0].client), plain(t, members)
	first, err := s.Revision(bounded(t))
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, s.Set(bounded(t), "key", nil, nil))
	}
	now, err := s.Revision(bounded(t))
	require.NoError(t, err)
	_, err = c.Compact(bounded(t), int64(now))
	require.NoError(t, err)
	for _, after := range []store.Revision{first, now + 1000} {
		for _, err := range s.Watch(bounded(t), "", after) {
			require.ErrorIs(t, err, store.ErrCompacted)
		}
	}
	require.NoError(t, s.Set(bounded(t), "newest", nil, nil))
	for e, err := range s.Watch(bounded(t), "", now) {
		require.NoError(t, err)
		require.Equal(t, "newest", e.Key)
		break
	}
}

// Of a group, what ranks wait for is found though history has been forgotten meanwhile.
func TestGroupOverACompaction(t *testing.T) {
	members := etcd(t)
	c := plain(t, members)
	o := &etcdstore.Options{Root: newRoot()}
	ranks := []*store.Store{store.New(dial(t, addresses(members), o)), store.New(dial(t, addresses(members), o))}
	each(2, func(i int) {
		roll, err := ranks[i].Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: 2}, nil)
		require.NoError(t, err)
		for seq := uint64(1); seq <= 50; seq++ {
			_, err = ranks[i].Collect(bounded(t), wire.Contribution{Generation: roll.Generation, Rank: i, Seq: seq, Root: -1, Verb: "barrier", Want: wire.WantNothing}, nil)
			require.NoError(t, err)
			if resp, err := c.Get(bounded(t), "x"); i == 0 && err == nil {
				_, err = c.Compact(bounded(t), resp.Header.Revision)
				require.NoError(t, err)
			}
		}
	})
}
