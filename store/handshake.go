package store

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// How a peer comes in: TLS if the server has it, the preface, hello, and if the server has secrets, the proof of one. All of that
// within Limits.Handshake; until it is over, nothing is carried out, and nothing large is read.

const (
	// helloRoom bounds the frames of a handshake: who the peer is, a token, a nonce, a proof.
	maxHandshakeFrame = 32 << 10
	// awayTime is how long a peer that is turned away has to hear why, and mostAway how many may hear it at once.
	refusalTimeout = time.Second
	maxRefusals    = 64
)

// tlsRecord is the first byte of a TLS handshake.
const tlsRecord = 0x16

// What the two sides of a misunderstanding are told. Neither may look like the head of a TLS record: see speaksPlain.
const (
	tlsRequired    = "it speaks TLS only: dial it with TLS"
	tlsUnsupported = "it speaks no TLS: dial it without"
)

// tlsConn is a TLS connection whose Close does not wait for the peer to take a close_notify: frames have lengths, and sessions a goodbye.
type tlsConn struct {
	*tls.Conn
	raw net.Conn
}

func (c tlsConn) Close() error { return c.raw.Close() }

// checkVersion refuses what a configuration that is not ours may have let in: proofs are bound to TLS 1.3.
func (c tlsConn) checkVersion() error {
	if v := c.ConnectionState().Version; v < tls.VersionTLS13 {
		return fmt.Errorf("%s, where TLS 1.3 is the least", tls.VersionName(v))
	}
	return nil
}

// welcome lets the peer in, or says why not. If it speaks another protocol, it is a guest then.
func (c *conn) welcome(buf []byte) error {
	_ = c.nc.SetDeadline(time.Now().Add(c.limits.Handshake))
	if err := c.secure(buf); err != nil {
		return err
	}
	if c.foreign == nil {
		if err := c.preface(buf); err != nil {
			return err
		}
	}
	if c.foreign != nil {
		return c.nc.SetDeadline(time.Time{})
	}
	if err := c.read(buf); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if c.req.Op != wire.OpHello {
		return fmt.Errorf("%w: %s before hello", ErrProtocol, c.req.Op)
	}
	c.hello = wire.Request{ // in memory of its own: the buffer is used again
		Op: c.req.Op, ID: c.req.ID, Key: strings.Clone(c.req.Key), Value: bytes.Clone(c.req.Value), Old: bytes.Clone(c.req.Old),
		Resume: c.req.Resume, Rev: c.req.Rev, Timeout: c.req.Timeout,
	}
	if err := c.authenticate(buf); err != nil {
		return err
	}
	c.in.limit = wire.MaxBody
	return c.nc.SetDeadline(time.Time{})
}

// secure is the TLS handshake, if the server has TLS.
func (c *conn) secure(buf []byte) error {
	if c.server.TLS == nil {
		return nil
	}
	raw := c.nc
	first, p, err := c.detectProtocol(buf)
	switch {
	case err != nil:
		return fmt.Errorf("handshake: %w", err)
	case p != nil:
		return c.setForeign(p, first)
	}
	t := tlsConn{tls.Server(&prefixedConn{raw, bytes.Clone(first)}, c.server.TLS), raw}
	c.mu.Lock()
	c.nc = t
	c.mu.Unlock()
	err = t.Handshake()
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		c.mu.Lock()
		c.nc = raw
		c.mu.Unlock()
		if plain.RecordHeader[0] == wire.Preface[0] {
			c.turnAway(wire.CodeDenied, tlsRequired)
		}
		return fmt.Errorf("%w: this server speaks TLS only, the peer does not: it began with %q", ErrProtocol, plain.RecordHeader)
	}
	if err == nil {
		if err = t.checkVersion(); err == nil && c.server.wantsCertificate() && verifiedCertificate(t) == nil {
			err = errors.New("no certificate of the peer has been verified") // by a configuration that is not what it says
		}
	}
	if err != nil {
		linger(raw) // there may be an alert on its way
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

// preface reads what every peer sends first, of this protocol or of another.
func (c *conn) preface(buf []byte) error {
	first, p, err := c.detectProtocol(buf)
	if p != nil {
		return c.setForeign(p, first)
	}
	n := len(first)
	if err == nil {
		n, err = io.ReadFull(c.nc, buf[n:len(wire.Preface)])
		n += len(first)
	}
	got := string(buf[:n])
	switch {
	case err != nil:
		return fmt.Errorf("handshake: %w", err)
	case got == wire.Preface:
		return nil
	case got[:wire.VersionAt] == wire.Preface[:wire.VersionAt]:
		c.turnAway(wire.CodeUnsupported, fmt.Sprintf("this server speaks version %d of the protocol", wire.Version))
	case got[0] == tlsRecord && got[1] == 3: // a ClientHello
		c.turnAway(wire.CodeDenied, tlsUnsupported)
		return fmt.Errorf("%w: the peer speaks TLS, this server does not", ErrProtocol)
	}
	return fmt.Errorf("%w: it began with %q", ErrProtocol, got)
}

// authenticate finds out what the peer may do. What it may do is this connection's, not its session's: who takes a session up again
// needs its token, and may do what it has shown itself to be allowed, which is nothing more for having the token.
func (c *conn) authenticate(buf []byte) error {
	nonce := c.hello.Old
	c.hello.Old = nil // an engine has its own use for it
	accesses := c.server.Access
	if len(accesses) == 0 {
		return nil
	}
	cert := verifiedCertificate(c.nc)
	var matched []int
	if cert != nil {
		matched = matchCertificate(accesses, cert)
	}
	secrets := hasSecrets(accesses)
	switch {
	case nonce != nil && secrets:
		bySecret, err := c.challenge(buf, nonce)
		if err != nil {
			return err
		}
		matched = append(matched, bySecret...)
	case len(matched) > 0:
	case cert != nil && secrets:
		return c.deny(fmt.Sprintf("the certificate of %s has no rights here, and no secret was given", quoted(cert.Subject.CommonName)))
	case cert != nil:
		return c.deny(fmt.Sprintf("the certificate of %s has no rights here", quoted(cert.Subject.CommonName)))
	case secrets:
		return c.deny("it wants a secret, and none was given")
	case hasNames(accesses):
		return c.deny("it wants a client certificate, and none was given")
	default:
		return c.deny("it is open to peers of other protocols only")
	}
	c.rights = rightsOf(accesses, matched)
	return nil
}

// challenge has the peer prove a secret, and prepares the proof that this side knows it too. It returns the accesses that have that secret.
func (c *conn) challenge(buf, nonce []byte) ([]int, error) {
	mine := newNonce()
	if _, err := c.nc.Write(wire.AppendReply(nil, wire.OpProof, 0, &wire.Reply{Value: mine})); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if err := c.read(buf); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if c.req.Op != wire.OpProof {
		return nil, fmt.Errorf("%w: %s before the proof", ErrProtocol, c.req.Op)
	}
	bind, err := binding(c.nc)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	matched, ok := matchSecret(c.server.Access, c.req.Value, nonce, mine, bind)
	if !ok {
		return nil, c.deny("wrong secret")
	}
	secret := c.server.Access[matched[0]].Secret // those that match are alike
	c.proof = [][]byte{proof(secret, proofServer, nonce, mine, bind)}
	return matched, nil
}

// deny turns the peer away, and returns why.
func (c *conn) deny(why string) error {
	c.turnAway(wire.CodeDenied, why)
	return fmt.Errorf("%w: %s", ErrDenied, why)
}

// greet answers the hello. The engine knows whether it is durable, the server what the grace is.
func (c *conn) greet(welcome *wire.Reply) {
	welcome.Values = c.proof
	welcome.Nums = append(welcome.Nums[:1], int64(c.limits.Grace), takesRelays)
	c.reply(wire.OpHello, c.hello.ID, welcome)
}

// refusal says why the peer has no right to have c.req carried out; "" if it has.
func (c *conn) refusal() string {
	if why := c.rights.refuse(&c.req); why != "" || c.trunk == nil || c.trunk.branch == nil {
		return why
	}
	return c.trunk.branch.rights.refuse(&c.req)
}

// refuse answers c.req, which is not to be carried out. Its number, if it has one, is used all the same, for what has no
// effect. If the machine says more about the number, that is the answer.
func (c *conn) refuse(now core.Time, session uint64, code wire.Code, why string) {
	op := c.req.Op
	c.rep = wire.Reply{}
	if c.req.Number != 0 {
		c.req = wire.Request{Op: wire.OpSkip, ID: c.req.ID, Number: c.req.Number, Acked: c.req.Acked}
		c.memory.applyLogged(now, session, &c.req, &c.rep)
	}
	if c.rep.Code == wire.CodeOK {
		c.rep = wire.Reply{Code: code, Detail: why}
	}
	c.reply(op, c.req.ID, &c.rep)
}

// turnAway answers a hello with no.
func (c *conn) turnAway(code wire.Code, detail string) {
	_ = c.nc.SetDeadline(time.Now().Add(refusalTimeout))
	b := wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Code: code, Detail: detail})
	if _, err := c.nc.Write(b); err == nil {
		linger(c.nc)
	}
	_ = c.nc.Close()
}

// sendAway turns away a peer for which there is no room.
func (c *conn) sendAway(detail string) {
	_ = c.nc.SetDeadline(time.Now().Add(refusalTimeout))
	if c.secure(make([]byte, len(wire.Preface))) == nil && c.foreign == nil {
		c.turnAway(wire.CodeFull, detail)
	}
	_ = c.nc.Close()
}

// linger lets the peer take what was written last: a close at once might take it back.
func linger(nc net.Conn) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = nc.SetDeadline(time.Now().Add(refusalTimeout))
	_ = half.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(nc, readBufferSize))
}
