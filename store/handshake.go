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

// The handshake: TLS if the server has it, the preface, the hello, and, if the server has secrets,
// the proof of one. All of it within ServerLimits.Handshake. Until it is finished no request is
// carried out, and no large frame is read.

const (
	// maxHandshakeFrame bounds the frames of a handshake: a name, a token, a nonce, a proof.
	maxHandshakeFrame = 32 << 10
	// refusalTimeout is how long a refused peer gets to read the reason, and maxRefusals how many
	// may do so at once.
	refusalTimeout = time.Second
	maxRefusals    = 64
)

// tlsRecord is the first byte of a TLS handshake.
const tlsRecord = 0x16

// Errors for a peer that uses TLS where the server does not, or the reverse. Neither may look like
// the head of a TLS record: see speaksPlain.
const (
	tlsRequired    = "this server requires TLS"
	tlsUnsupported = "this server does not use TLS: dial it without"
)

// tlsConn is a TLS connection whose Close does not wait for the peer to read a close_notify. The
// protocol needs none: frames have lengths, and sessions a goodbye.
type tlsConn struct {
	*tls.Conn
	raw net.Conn
}

func (c tlsConn) Close() error { return c.raw.Close() }

// checkVersion rejects TLS below 1.3, which a caller's configuration may allow: proofs need the key
// export of 1.3.
func (c tlsConn) checkVersion() error {
	if v := c.ConnectionState().Version; v < tls.VersionTLS13 {
		return fmt.Errorf("%s, where TLS 1.3 is the least", tls.VersionName(v))
	}
	return nil
}

// handshake makes the handshake, and returns the error if the peer is refused. A peer of another
// protocol is a foreignConn afterwards.
func (c *conn) handshake(buf []byte) error {
	_ = c.nc.SetDeadline(time.Now().Add(c.limits.Handshake))
	if err := c.tlsHandshake(buf); err != nil {
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
	c.hello = wire.Request{ // copied, because the buffer is reused
		Op: c.req.Op, ID: c.req.ID, Key: strings.Clone(c.req.Key), Value: bytes.Clone(c.req.Value), Token: bytes.Clone(c.req.Token),
		Resume: c.req.Resume, Incarnation: c.req.Incarnation, Timeout: c.req.Timeout,
	}
	if err := c.authenticate(buf); err != nil {
		return err
	}
	c.in.limit = wire.MaxBody
	return c.nc.SetDeadline(time.Time{})
}

// tlsHandshake makes the TLS handshake, if the server has TLS.
func (c *conn) tlsHandshake(buf []byte) error {
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
			c.refuseHello(wire.CodeDenied, wire.ReasonNoTLS, tlsRequired)
		}
		return fmt.Errorf("%w: this server speaks TLS only, the peer does not: it began with %q", ErrProtocol, plain.RecordHeader)
	}
	if err == nil {
		if err = t.checkVersion(); err == nil && c.server.requiresCertificate() && verifiedCertificate(t) == nil {
			err = errors.New("no certificate of the peer has been verified") // the caller's configuration does not enforce its ClientAuth
		}
	}
	if err != nil {
		linger(raw) // the peer must be able to read the alert
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

// preface reads the first bytes of a peer, of this protocol or another one.
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
		c.refuseHello(wire.CodeUnsupported, wire.ReasonUnknown, fmt.Sprintf("this server speaks version %d of the protocol", wire.Version))
	case got[0] == tlsRecord && got[1] == 3: // a ClientHello
		c.refuseHello(wire.CodeDenied, wire.ReasonTLS, tlsUnsupported)
		return fmt.Errorf("%w: the peer speaks TLS, this server does not", ErrProtocol)
	}
	return fmt.Errorf("%w: it began with %q", ErrProtocol, got)
}

// authenticate determines the rights of the connection. They belong to the connection and not to
// its session: resuming a session needs its token, and gives no rights beyond those that the peer
// has proved on this connection.
func (c *conn) authenticate(buf []byte) error {
	nonce := c.hello.Token
	c.hello.Token = nil // engines use the field otherwise
	accesses := c.server.Access
	if len(accesses) == 0 {
		c.stackPrefixes = c.server.stackPrefixesOf(nil)
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
		return c.deny(wire.ReasonCertificate, fmt.Sprintf("the certificate of %s has no rights here, and no secret was given", quoted(cert.Subject.CommonName)))
	case cert != nil:
		return c.deny(wire.ReasonCertificate, fmt.Sprintf("the certificate of %s has no rights here", quoted(cert.Subject.CommonName)))
	case secrets:
		return c.deny(wire.ReasonNoSecret, "this store requires a secret, and none was given")
	case hasNames(accesses):
		return c.deny(wire.ReasonNoCertificate, "this store requires a client certificate, and none was given")
	default:
		return c.deny(wire.ReasonUnknown, "this store accepts unauthenticated peers of other protocols only")
	}
	c.rights, c.stackPrefixes = rightsOf(accesses, matched), c.server.stackPrefixesOf(matched)
	return nil
}

// challenge makes the peer prove a secret, and prepares this side's proof. It returns the accesses
// with that secret.
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
		return nil, c.deny(wire.ReasonSecret, "wrong secret")
	}
	secret := c.server.Access[matched[0]].Secret // all matched accesses have the same secret
	c.proof = [][]byte{proof(secret, proofServer, nonce, mine, bind)}
	return matched, nil
}

// deny refuses the peer with CodeDenied, and returns the error.
func (c *conn) deny(reason wire.Reason, why string) error {
	c.refuseHello(wire.CodeDenied, reason, why)
	return fmt.Errorf("%w: %s", ErrDenied, why)
}

// sendWelcome answers the hello. The engine has set whether it is durable, the server adds its
// reconnect timeout.
func (c *conn) sendWelcome(welcome *wire.Reply) {
	welcome.Values = c.proof
	welcome.Nums = append(welcome.Nums[:1], int64(c.limits.ReconnectTimeout), acceptsRelays)
	c.reply(wire.OpHello, c.hello.ID, welcome)
}

// denialReason returns why the peer has no right to make c.req, or "". A relayed peer needs the
// rights of its relay and its own.
func (c *conn) denialReason() string {
	why := c.rights.refuse(&c.req)
	if b := c.current(); why == "" && b != nil {
		why = b.rights.refuse(&c.req)
	}
	return why
}

// refuseRequest answers c.req with an error. A refused request still consumes its sequence number:
// OpSkip takes its place, so that later numbers stay valid. If the machine rejects the number
// itself, that is the reply.
func (c *conn) refuseRequest(now core.Time, session uint64, code wire.Code, why string) {
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

// refuseHello answers a hello with an error, and closes the connection.
func (c *conn) refuseHello(code wire.Code, reason wire.Reason, detail string) {
	_ = c.nc.SetDeadline(time.Now().Add(refusalTimeout))
	b := wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Code: code, Detail: detail, N: int64(reason)})
	if _, err := c.nc.Write(b); err == nil {
		linger(c.nc)
	}
	_ = c.nc.Close()
}

// refuseForLimit refuses a peer that exceeds a limit, after the TLS handshake.
func (c *conn) refuseForLimit(detail string) {
	_ = c.nc.SetDeadline(time.Now().Add(refusalTimeout))
	if c.tlsHandshake(make([]byte, len(wire.Preface))) == nil && c.foreign == nil {
		c.refuseHello(wire.CodeFull, wire.ReasonUnknown, detail)
	}
	_ = c.nc.Close()
}

// linger lets the peer read what was written last: closing a socket with unread input discards it.
func linger(nc net.Conn) {
	half, ok := nc.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = nc.SetDeadline(time.Now().Add(refusalTimeout))
	_ = half.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(nc, readBufferSize))
}
