package link

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
)

// The handshake of two ranks is that of a store and its client. The secret is the token of the
// acceptor, which only ranks of the group know, and which is new for each rank, generation and mesh: a
// hello for another one is refused, since addresses are reused. Over TLS the proof is bound to the
// connection, so that certificates need not be verified.
//
// The value of the hello says who dials, and why. Numbers are little-endian.
//
//	from u32 | kind u8 | id u64 | number u64
const helloLen = 4 + 1 + 8 + 8

func appendHello(b []byte, from int, p Purpose) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(from))
	b = append(b, p.Kind)
	b = binary.LittleEndian.AppendUint64(b, p.ID)
	return binary.LittleEndian.AppendUint64(b, p.Number)
}

func (m *Mesh) parseHello(b []byte) (from int, p Purpose, err error) {
	if len(b) != helloLen {
		return 0, p, errors.New("malformed hello: another version of muster?")
	}
	from = int(binary.LittleEndian.Uint32(b))
	if from < 0 || from >= len(m.peers) || from == m.group.Rank() {
		return 0, p, fmt.Errorf("the hello is from rank %d, which is invalid", from)
	}
	b = b[4:]
	return from, Purpose{Kind: b[0], ID: binary.LittleEndian.Uint64(b[1:]), Number: binary.LittleEndian.Uint64(b[9:])}, nil
}

// dialHandshake is the handshake of the dialer, which owns conn until it returns. The connection to
// use may be a TLS connection.
func (m *Mesh) dialHandshake(ctx context.Context, conn net.Conn, rank int, p Purpose) (net.Conn, error) {
	offer := &handshake.Offer{Secret: m.peers[rank].Token, Hello: wire.Request{Value: appendHello(nil, m.group.Rank(), p)}}
	if m.cert != nil && !isUnix(conn) {
		offer.TLS = &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} //nolint:gosec // the token's proof is bound to the connection
	}
	welcome, err := handshake.Open(ctx, conn, offer)
	if unread, _ := welcome.In.Unread(); err == nil && len(unread) > 0 {
		_ = welcome.Conn.Close()
		err = errors.New("the acceptor has sent something before the dialer")
	}
	return welcome.Conn, err
}

// acceptHandshake is the handshake of the acceptor, which owns conn. It hands the connection to
// Options.Accept, and then tells the dialer.
func (m *Mesh) acceptHandshake(conn net.Conn) error {
	policy := &handshake.Policy{Timeout: handshakeTimeout, Credentials: []handshake.Credential{{Secret: m.token}}}
	if m.cert != nil && !isUnix(conn) {
		policy.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*m.cert}, SessionTicketsDisabled: true}
	}
	peer, err := handshake.Accept(conn, policy)
	if err != nil {
		return err
	}
	from, purpose, err := m.parseHello(peer.Hello.Value)
	if unread, _ := peer.In.Unread(); err == nil && len(unread) > 0 {
		err = errors.New("the dialer has sent something before it was welcome")
	}
	if err != nil {
		handshake.Refuse(peer.Conn, &handshake.RefusalError{Code: wire.CodeInvalid, Detail: err.Error()})
		return err
	}
	m.opts.Accept(&Conn{Conn: peer.Conn, Rank: from, Purpose: purpose})
	if _, err = peer.Conn.Write(wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Values: peer.Proof})); err != nil {
		_ = peer.Conn.Close()
	}
	return err
}

// newCertificate returns a certificate for one mesh, which only encrypts. The certificate that a rank
// has for the group's store may be valid for a client only.
func newCertificate() (*tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(100, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// isUnix reports whether conn needs no TLS.
func isUnix(conn net.Conn) bool {
	_, ok := conn.(*net.UnixConn)
	return ok
}
