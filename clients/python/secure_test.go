package python_test

import (
	"crypto/tls"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// keys are the files of a certificate authority, and a secret.
type keys struct {
	dir, secretFile string
	secret          []byte
}

func makeKeys(t *testing.T) keys {
	t.Helper()
	k := keys{dir: t.TempDir(), secret: []byte("sixteen bytes and some more")}
	_, err := certs.Make(k.dir, certs.Options{})
	require.NoError(t, err)
	k.secretFile = filepath.Join(k.dir, "secret")
	require.NoError(t, os.WriteFile(k.secretFile, append(k.secret, '\n'), 0o600))
	return k
}

func (k keys) path(name string) string { return filepath.Join(k.dir, name) }

// server returns the TLS configuration of a store.
func (k keys) server(t *testing.T, requireClient bool) *tls.Config {
	t.Helper()
	f := &store.TLSFiles{Cert: k.path("server.pem"), Key: k.path("server-key.pem"), CA: k.path("ca.pem"), RequireClient: requireClient}
	c, err := f.Server()
	require.NoError(t, err)
	return c
}

// TestWhoComesIn checks authentication with TLS, certificates and secrets, and the errors for
// clients that lack them.
func TestWhoComesIn(t *testing.T) {
	k, foreign := makeKeys(t), makeKeys(t)
	secret := []store.Access{{Secret: k.secret, Write: true}}
	servers := map[string]string{
		"open":           testcluster.Serve(t, new(store.Server)),
		"secret":         testcluster.Serve(t, &store.Server{Access: secret}),
		"TLS":            testcluster.Serve(t, &store.Server{TLS: k.server(t, false)}),
		"TLS and secret": testcluster.Serve(t, &store.Server{TLS: k.server(t, false), Access: secret}),
		"certificates":   testcluster.Serve(t, &store.Server{TLS: k.server(t, true)}),
	}
	ca := kw{"ca": k.path("ca.pem")}
	client := kw{"ca": k.path("ca.pem"), "cert": k.path("client.pem"), "key": k.path("client-key.pem")}
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("another secret of some length"), 0o600))

	p := start(t)
	for _, c := range []struct {
		server string
		with   kw
		kind   string // "": it is admitted
		says   string
	}{
		{server: "open"},
		{server: "open", with: kw{"secret_file": k.secretFile}, kind: "Denied", says: "the store did not prove that it knows the secret"},
		{server: "open", with: kw{"tls": ca}, kind: "Denied", says: "this server does not use TLS: dial it without"},
		{server: "secret", with: kw{"secret_file": k.secretFile}},
		{server: "secret", kind: "Denied", says: "this store requires a secret, and none was given"},
		{server: "secret", with: kw{"secret_file": other}, kind: "Denied", says: "wrong secret"},
		{server: "TLS", with: kw{"tls": ca}},
		{server: "TLS", kind: "Denied", says: "this server requires TLS"},
		{server: "TLS", with: kw{"tls": kw{"ca": foreign.path("ca.pem")}}, kind: "Denied", says: "its certificate is not trusted: "},
		{server: "TLS", with: kw{"tls": kw{"ca": k.path("ca.pem"), "server_name": "elsewhere"}}, kind: "Denied", says: "its certificate is not trusted: "},
		{server: "TLS and secret", with: kw{"tls": ca, "secret_file": k.secretFile}},
		{server: "TLS and secret", with: kw{"tls": ca, "secret_file": other}, kind: "Denied", says: "wrong secret"},
		{server: "TLS and secret", with: kw{"tls": ca}, kind: "Denied", says: "this store requires a secret, and none was given"},
		{server: "certificates", with: kw{"tls": client}},
		{server: "certificates", with: kw{"tls": ca}, kind: "Denied", says: "TLS refused: "},
	} {
		addr := servers[c.server]
		with := kw{"timeout": 10}
		maps.Copy(with, c.with)
		if c.kind != "" {
			f := p.fails(c.kind, "new", "connect", addr, with)
			require.Contains(t, f.Text, `store: dial "`+addr+`": denied: `+c.says, "%s with %v", c.server, c.with)
			f = p.fails(c.kind, "new", "join", 0, 1, addr, with)
			hint := map[bool]string{true: ": check secret (MUSTER_SECRET_FILE), which", false: ": check tls (MUSTER_TLS_CA, "}[strings.Contains(c.says, "secret")]
			require.Contains(t, f.Text, hint, "%s with %v", c.server, c.with)
			continue
		}
		_, err := p.do("new", "connect", addr, with)
		require.NoError(t, err, "%s with %v", c.server, c.with)
		large := raw(string(make([]byte, 3<<20)))
		p.must("store", "set", "k", large)
		require.Equal(t, large, p.must("store", "get", "k"))
		p.must("store", "close")
	}
}
