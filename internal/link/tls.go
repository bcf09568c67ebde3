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

// identity is a certificate that is made for one mesh, and known by its hash: what a rank has for the group's store may be good
// for a client only, or for another name.
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
	// Ranks' clocks may differ: the hash is what counts, and that is checked.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &identity{cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, print: sha256.Sum256(der)}, nil
}

var errCertificate = errors.New("its certificate is not that of the rank")

// config trusts the certificates that known says yes to.
func (id *identity) config(known func(print []byte) bool) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // the hash is verified, below, and not a chain
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

// secure is the dialer's TLS, if the group uses it. What stays on the node needs none.
func (m *Mesh) secure(ctx context.Context, conn net.Conn, rank int) (net.Conn, error) {
	if m.ident == nil || isUnix(conn) {
		return conn, nil
	}
	c := tls.Client(conn, m.ident.config(func(print []byte) bool { return bytes.Equal(print, m.cards[rank].Cert) }))
	return c, c.HandshakeContext(ctx)
}

func (m *Mesh) secureServer(conn net.Conn) (net.Conn, error) {
	if m.ident == nil || isUnix(conn) {
		return conn, nil
	}
	c := tls.Server(conn, m.ident.config(func([]byte) bool { return true })) // isWhoItSays is asked when it has said
	return c, c.Handshake()
}

// isWhoItSays compares the dialer's certificate with that of the rank that it claims to be.
func (m *Mesh) isWhoItSays(conn net.Conn, from int) error {
	c, ok := conn.(*tls.Conn)
	if ok && !bytes.Equal(fingerprint(c.ConnectionState()), m.cards[from].Cert) {
		return errCertificate
	}
	return nil
}

func isUnix(conn net.Conn) bool {
	_, ok := conn.(*net.UnixConn)
	return ok
}
