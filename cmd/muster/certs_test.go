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

func TestCertsWhereItMayNotWrite(t *testing.T) {
	t.Parallel()
	run(t, "certs", testcluster.Unwritable(t)).wants(t, 1, "", "permission denied")
}
