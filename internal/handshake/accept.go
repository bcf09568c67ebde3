package handshake

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Policy says which peers an acceptor admits.
type Policy struct {
	Timeout time.Duration // of the whole handshake
	TLS     *tls.Config   // nil: none
	// Credentials admit the peers that have one of them. If there are none, every peer is admitted.
	Credentials []Credential
	// Other reports whether a connection that begins with first is of another protocol, whose peers
	// make no handshake, or whether it needs more bytes to decide, up to len(wire.Preface). nil: there
	// are no other protocols.
	Other  func(first []byte) (yes, more bool)
	Full   *RefusalError     // if not nil, every peer is refused, after the TLS handshake
	Budget *transport.Budget // of Peer.In
}

// Credential is a secret that a peer may prove, or a name in its certificate: the common name, a DNS
// name or a URI. If it has neither, no peer matches it, and still it makes the others be refused.
type Credential struct {
	Secret []byte // see BadSecret
	Name   string
}

// Peer is the dialer of an accepted connection.
type Peer struct {
	Conn   net.Conn     // the caller's, without a deadline; over TLS if the policy has it and the peer used it
	Other  []byte       // what a peer of another protocol has sent; the fields below are not set then
	Hello  wire.Request // without the nonce
	Proved []int        // indexes of the credentials that it has
	Proof  [][]byte     // that this side knows the secret too: Values of the reply to the hello
	In     FrameReader  // with what the peer has sent after its handshake

	Received int // bytes of the frames before that
}

// bufferSize is how many bytes of a handshake are read at once.
const bufferSize = 4 << 10

// Accept makes the acceptor's part of the handshake, except that the caller replies to Peer.Hello. It
// owns conn until it returns. After an error, which the peer knows if it is a *RefusalError, conn is
// closed, and Peer has at most the Hello.
func Accept(conn net.Conn, p *Policy) (Peer, error) {
	a := acceptor{Policy: p, conn: conn, buf: make([]byte, bufferSize)}
	a.peer.In = FrameReader{Inbox: transport.Inbox{First: bufferSize, Budget: p.Budget}, Limit: MaxFrame}
	_ = conn.SetDeadline(time.Now().Add(p.Timeout))
	err := a.run()
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		a.peer.In.Release()
		return Peer{Hello: a.peer.Hello}, err
	}
	a.peer.Conn = a.conn
	a.peer.In.Compact()
	return a.peer, nil
}

// acceptor is the state of Accept.
type acceptor struct {
	*Policy
	conn net.Conn // of TLS after that handshake
	buf  []byte
	peer Peer
}

func (a *acceptor) run() error {
	for _, step := range []func() error{a.startTLS, a.refuseIfFull, a.readPreface, a.readHello, a.authenticate} {
		if err := step(); err != nil || a.peer.Other != nil {
			return err
		}
	}
	return nil
}

// refuse refuses the peer, and returns the error.
func (a *acceptor) refuse(r *RefusalError) error {
	Refuse(a.conn, r)
	return r
}

func (a *acceptor) refuseIfFull() error {
	if a.Full == nil {
		return nil
	}
	return a.refuse(a.Full)
}

// startTLS makes the TLS handshake, if the policy has TLS.
func (a *acceptor) startTLS() error {
	if a.TLS == nil {
		return nil
	}
	first, err := a.detectProtocol()
	if err != nil || a.peer.Other != nil {
		return err
	}
	c := tlsConn{tls.Server(prefixedConn{a.conn, io.MultiReader(bytes.NewReader(bytes.Clone(first)), a.conn)}, a.TLS), a.conn}
	err = c.handshake()
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if plain.RecordHeader[0] == wire.Preface[0] {
			Refuse(a.conn, denied(wire.ReasonNoTLS, tlsRequired))
		}
		return protocolError("this server speaks TLS only, the peer does not: it began with %q", plain.RecordHeader)
	}
	if err == nil && a.TLS.ClientAuth == tls.RequireAndVerifyClientCert && VerifiedCertificate(c) == nil {
		err = errors.New("no certificate of the peer has been verified") // the caller's configuration does not enforce its ClientAuth
	}
	if err != nil {
		linger(a.conn) // the peer must be able to read the alert
		return fmt.Errorf("TLS handshake: %w", err)
	}
	a.conn = c
	return nil
}

// detectProtocol reads the first bytes of the connection, as few as tell whether it is of another
// protocol, and then sets Peer.Other.
func (a *acceptor) detectProtocol() (first []byte, err error) {
	n := 0
	for n < len(wire.Preface) && a.Other != nil {
		m, err := a.conn.Read(a.buf[n:len(wire.Preface)])
		n += m
		if n > 0 && (a.buf[0] == wire.Preface[0] || a.buf[0] == tlsRecord) {
			break
		}
		yes, more := a.Other(a.buf[:n])
		if yes {
			a.peer.Other = bytes.Clone(a.buf[:n])
		}
		if yes || n > 0 && !more {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("handshake: %w", err)
		}
	}
	return a.buf[:n], nil
}

// readPreface reads the preface, or the first bytes of another protocol.
func (a *acceptor) readPreface() error {
	first, err := a.detectProtocol()
	if err != nil || a.peer.Other != nil {
		return err
	}
	if _, err := io.ReadFull(a.conn, a.buf[len(first):len(wire.Preface)]); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	got := string(a.buf[:len(wire.Preface)])
	switch {
	case got == wire.Preface:
		return nil
	case got[:wire.VersionAt] == wire.Preface[:wire.VersionAt]:
		Refuse(a.conn, &RefusalError{Code: wire.CodeUnsupported, Detail: fmt.Sprintf("this server speaks version %d of the protocol", wire.Version)})
	case got[0] == tlsRecord && got[1] == 3: // a ClientHello
		Refuse(a.conn, denied(wire.ReasonTLS, tlsUnsupported))
		return protocolError("the peer speaks TLS, this server does not")
	}
	return protocolError("it began with %q", got)
}

// readHello reads the hello.
func (a *acceptor) readHello() error {
	req, err := a.read()
	if err != nil {
		return err
	}
	if req.Op != wire.OpHello {
		return protocolError("%s before hello", req.Op)
	}
	a.peer.Hello = req
	return nil
}

// read reads a request.
func (a *acceptor) read() (req wire.Request, err error) {
	h, body, _, err := a.peer.In.Read(a.conn, a.buf)
	if err != nil {
		return req, fmt.Errorf("handshake: %w", err)
	}
	a.peer.Received += wire.HeaderLen + len(body)
	if err = req.Parse(h, bytes.Clone(body)); err != nil {
		return req, fmt.Errorf("handshake: %s: %w", h.Op, err)
	}
	return req, nil
}

// authenticate finds the peer's credentials.
func (a *acceptor) authenticate() error {
	nonce := a.peer.Hello.Token
	a.peer.Hello.Token = nil // the receiver of the hello uses the field otherwise
	if len(a.Credentials) == 0 {
		return nil
	}
	cert := VerifiedCertificate(a.conn)
	a.peer.Proved = a.matchCertificate(cert)
	secrets := slices.ContainsFunc(a.Credentials, func(c Credential) bool { return c.Secret != nil })
	switch {
	case nonce != nil && secrets:
		return a.challenge(nonce)
	case len(a.peer.Proved) > 0:
		return nil
	case cert != nil && secrets:
		return a.refuse(denied(wire.ReasonCertificate, fmt.Sprintf("the certificate of %.100q has no rights here, and no secret was given", cert.Subject.CommonName)))
	case cert != nil:
		return a.refuse(denied(wire.ReasonCertificate, fmt.Sprintf("the certificate of %.100q has no rights here", cert.Subject.CommonName)))
	case secrets:
		return a.refuse(denied(wire.ReasonNoSecret, "this store requires a secret, and none was given"))
	case slices.ContainsFunc(a.Credentials, func(c Credential) bool { return c.Name != "" }):
		return a.refuse(denied(wire.ReasonNoCertificate, "this store requires a client certificate, and none was given"))
	}
	return a.refuse(denied(wire.ReasonUnknown, "this store accepts unauthenticated peers of other protocols only"))
}

// matchCertificate returns the indexes of the credentials with one of the names of cert, which may be
// nil.
func (a *acceptor) matchCertificate(cert *x509.Certificate) (matched []int) {
	if cert == nil {
		return nil
	}
	names := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	for i, c := range a.Credentials {
		if c.Name != "" && slices.Contains(names, c.Name) {
			matched = append(matched, i)
		}
	}
	return matched
}

// challenge makes the peer prove a secret, and prepares this side's proof.
func (a *acceptor) challenge(nonce []byte) error {
	mine := NewNonce()
	if _, err := a.conn.Write(wire.AppendReply(nil, wire.OpProof, 0, &wire.Reply{Value: mine})); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	req, err := a.read()
	if err != nil {
		return err
	}
	if req.Op != wire.OpProof {
		return protocolError("%s before the proof", req.Op)
	}
	e, err := newExchange(a.conn, nonce, mine)
	if err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	matched := e.match(a.Credentials, req.Value)
	if len(matched) == 0 {
		return a.refuse(denied(wire.ReasonSecret, "wrong secret"))
	}
	secret := a.Credentials[matched[0]].Secret // all that matched have the same one
	a.peer.Proved = append(a.peer.Proved, matched...)
	a.peer.Proof = [][]byte{e.proof(secret, proofServer)}
	return nil
}

// prefixedConn is a connection whose first bytes were already read, and are read from in again.
type prefixedConn struct {
	net.Conn
	in io.Reader
}

func (c prefixedConn) Read(b []byte) (int, error) { return c.in.Read(b) }
