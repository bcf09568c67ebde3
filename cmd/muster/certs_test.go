package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
)

func TestCerts(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new one", "it's")
	r := run(t, "certs", dir, "--host", "node7,10.0.0.7", "--host", "node8", "--name", "trainer,viewer", "--days", "30")
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	quoted := strings.ReplaceAll(dir, "'", `'\''`)
	for _, line := range []string{
		"  ca.pem            for server and clients\n",
		"  ca-key.pem        signs new certificates; keep it secret\n",
		"  server.pem        for the server\n",
		"  server-key.pem    for the server\n",
		"  trainer.pem       for client \"trainer\"\n",
		"  viewer-key.pem    for client \"viewer\"\n",
		"\n  muster serve --listen node7:7070 --tls-cert '" + quoted + "/server.pem' --tls-key '" + quoted + "/server-key.pem' --tls-ca '" + quoted + "/ca.pem' --require-client-cert\n",
		"\n  export MUSTER_STORE=muster://node7:7070 MUSTER_TLS_CA='" + quoted + "/ca.pem'\n  export MUSTER_TLS_CERT='" + quoted + "/trainer.pem' MUSTER_TLS_KEY='" + quoted + "/trainer-key.pem'\n",
	} {
		assert.Contains(t, r.stdout, line)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	server, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem"))
	require.NoError(t, err)
	for _, host := range []string{"node7", "10.0.0.7", "node8"} {
		if _, err := server.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Error(err)
		}
	}
}

func TestCertsAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := run(t, "certs", dir); r.code != 0 || !strings.Contains(r.stdout, "client-key.pem") || !strings.Contains(r.stdout, "muster serve --tls-cert "+dir+"/server.pem") {
		t.Errorf("%+v", r)
	}
	run(t, "certs", dir).wants(t, 1, "", "say which hosts or names")
	run(t, "certs", dir, "--host", "node7").wants(t, 1, "", filepath.Join(dir, "server.pem")+" is there already: move it away")
	run(t, "certs", dir, "--name", "client").wants(t, 1, "", filepath.Join(dir, "client.pem")+" is there already")
	if r := run(t, "certs", dir, "--name", "viewer"); r.code != 0 || !strings.Contains(r.stdout, "viewer.pem") || strings.Contains(r.stdout, "serve") || strings.Contains(r.stdout, "ca.pem") {
		t.Errorf("%+v", r)
	}
}

func TestCertsRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for args, want := range map[string]struct {
		code   int
		stderr string
	}{
		"":                              {2, "DIR is missing"},
		"a b":                           {2, "unexpected argument"},
		"DIR --host a:7070":             {2, `host "a:7070"`},
		"DIR --host a,,b":               {2, `host ""`},
		"DIR --host=":                   {2, "--host is empty"},
		"DIR --name=":                   {2, "--name is empty"},
		"DIR --name ../x":               {2, `name "../x"`},
		"DIR --name ca":                 {2, "another file"},
		"DIR --name x,x":                {2, "twice"},
		"DIR --days 0":                  {2, "--days 0: it must be positive"},
		"DIR --days -1":                 {2, "--days -1: it must be positive"},
		"DIR --days 99999":              {2, "99999 days"},
		"DIR --days soon":               {2, "--days"},
		file:                            {1, "no certificates made: mkdir " + file + ": not a directory"},
		filepath.Join(file, "below it"): {1, "not a directory"},
		"/proc/tls":                     {1, "no certificates made"},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "tls")
			words := []string{"certs"}
			if strings.HasPrefix(args, "/") {
				words = append(words, args)
			} else {
				words = append(words, strings.Fields(strings.ReplaceAll(args, "DIR", dir))...)
			}
			run(t, words...).wants(t, want.code, "", want.stderr)
			if _, err := os.Stat(dir); err == nil {
				t.Error("it has made the directory")
			}
		})
	}
	run(t, "certs", "").wants(t, 2, "", "DIR is empty")
}

func TestCertsWhereItMayNotWrite(t *testing.T) {
	t.Parallel()
	run(t, "certs", testcluster.Unwritable(t)).wants(t, 1, "", "permission denied")
}
