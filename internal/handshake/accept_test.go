package handshake_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	connect := func() (dialed, accepted net.Conn) {
		dialed, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		accepted, err = l.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { _ = dialed.Close(); _ = accepted.Close() })
		return dialed, accepted
	}
	for name, between := range map[string]bool{"alone": false, "with somebody between them": true} {
		t.Run(name, func(t *testing.T) {
			var others sync.WaitGroup
			defer others.Wait()
			dialed, accepted := connect()
			defer dialed.Close() // ends the others
			if between {
				raw, last := connect()
				in, out := tls.Server(accepted, server), tls.Client(raw, client)
				accepted = last
				others.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
				others.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
			}
			others.Go(func() {
				peer, err := handshake.Accept(accepted, &handshake.Policy{Timeout: time.Minute, TLS: server, Credentials: []handshake.Credential{{Secret: secretOf("s")}}})
				if between {
					assert.ErrorContains(t, err, "wrong secret")
				}
				if err != nil {
					return
				}
				_, err = peer.Conn.Write(wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Values: peer.Proof}))
				assert.NoError(t, err)
			})
			welcome, err := handshake.Open(t.Context(), dialed, &handshake.Offer{TLS: client, Secret: secretOf("s")})
			if between {
				require.ErrorContains(t, err, "wrong secret")
				return
			}
			require.NoError(t, err)
			require.NoError(t, welcome.Conn.Close())
		})
	}
}
