package handshake_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/handshake"
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
