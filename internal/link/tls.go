package link

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"time"
)

const printLen = sha256.Size

// identity is a certificate that is made for one mesh and identified by its hash. The certificate
// that a rank has for the group's store may be valid for a client only, or for another name.
type identity struct {
	cert  tls.Certificate
	print [printLen]byte
}

func newIdentity() (*identity, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	// The clocks of ranks may differ; the hash alone is checked.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &identity{cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, print: sha256.Sum256(der)}, nil
}

var errCertificate = errors.New("the certificate is not that of the rank")

// config returns a configuration that accepts the certificates whose hashes known accepts.
func (id *identity) config(known func(print []byte) bool) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // the hash is verified, below, and not a chain
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 || !known(fingerprint(s)) {
				return errCertificate
			}
			return nil
		},
	}
}

func fingerprint(s tls.ConnectionState) []byte {
	print := sha256.Sum256(s.PeerCertificates[0].Raw)
	return print[:]
}

// dialTLS is the TLS handshake of the dialer, if the group uses TLS. Unix sockets need none.
func (m *Mesh) dialTLS(ctx context.Context, conn net.Conn, rank int) (net.Conn, error) {
	if m.ident == nil || isUnix(conn) {
		return conn, nil
	}
	c := tls.Client(conn, m.ident.config(func(print []byte) bool { return bytes.Equal(print, m.peers[rank].Cert) }))
	return c, c.HandshakeContext(ctx)
}

func (m *Mesh) acceptTLS(conn net.Conn) (net.Conn, error) {
	if m.ident == nil || isUnix(conn) {
		return conn, nil
	}
	c := tls.Server(conn, m.ident.config(func([]byte) bool { return true })) // checkCertificate compares it with the hello
	return c, c.Handshake()
}

// checkCertificate compares the dialer's certificate with that of the rank in its hello.
func (m *Mesh) checkCertificate(conn net.Conn, from int) error {
	c, ok := conn.(*tls.Conn)
	if ok && !bytes.Equal(fingerprint(c.ConnectionState()), m.peers[from].Cert) {
		return errCertificate
	}
	return nil
}

func isUnix(conn net.Conn) bool {
	_, ok := conn.(*net.UnixConn)
	return ok
}
