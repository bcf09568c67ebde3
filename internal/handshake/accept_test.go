package handshake_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/testcluster"
)

func TestCredentialsOfCertificate(t *testing.T) {
	uri, err := url.Parse("spiffe://example.com/viewer")
	require.NoError(t, err)
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: "trainer"}, DNSNames: []string{"node7.example.com"}, URIs: []*url.URL{uri}}
	credentials := []handshake.Credential{
		{Name: "trainer"}, {Name: "other"}, {Name: "node7.example.com"}, {Secret: secretOf("s")}, {Name: "spiffe://example.com/viewer"}, {},
	}
	require.Equal(t, []int{0, 2, 4}, handshake.MatchCertificate(credentials, cert))
	// A certificate without names does not match the credentials without a name.
	require.Empty(t, handshake.MatchCertificate(credentials, &x509.Certificate{}))
}

// TestAProofIsOfOneConnection checks that a man in the middle, who speaks TLS with both ends and passes
// on all that they say, fails even if the dialer verifies no certificate: a proof is valid for one TLS
// connection only.
func TestAProofIsOfOneConnection(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{})
	require.NoError(t, err)
	own, err := tls.LoadX509KeyPair(dir+"/server.pem", dir+"/server-key.pem")
	require.NoError(t, err)
	server, client := &tls.Config{Certificates: []tls.Certificate{own}}, &tls.Config{InsecureSkipVerify: true}
	dialed, first := testcluster.Conns(t)
	second, accepted := testcluster.Conns(t)
	in, out := tls.Server(first, server), tls.Client(second, client)
	var others sync.WaitGroup
	defer others.Wait()
	defer dialed.Close() // ends the others
	others.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
	others.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
	others.Go(func() {
		_, err := handshake.Accept(accepted, &handshake.Policy{Timeout: time.Minute, TLS: server, Credentials: []handshake.Credential{{Secret: secretOf("s")}}})
		assert.ErrorContains(t, err, "wrong secret")
		_ = accepted.Close()
	})
	_, err = handshake.Open(t.Context(), dialed, &handshake.Offer{TLS: client, Secret: secretOf("s")})
	require.ErrorContains(t, err, "wrong secret")
}
