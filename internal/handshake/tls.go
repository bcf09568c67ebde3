package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"

	"github.com/muster-pg/muster/wire"
)

// tlsRecord is the first byte of a TLS handshake.
const tlsRecord = 0x16

// tlsConn is a TLS connection whose Close does not wait for the peer to read a close_notify. Frames
// have lengths, and sessions a goodbye: none is needed.
type tlsConn struct {
	*tls.Conn
	raw net.Conn
}

func (c tlsConn) Close() error { return c.raw.Close() }

// handshake makes the TLS handshake. It rejects TLS below 1.3, which a caller's configuration may
// allow: proofs need the key export of 1.3.
func (c tlsConn) handshake() error {
	if err := c.Handshake(); err != nil {
		return err
	}
	if v := c.ConnectionState().Version; v < tls.VersionTLS13 {
		return fmt.Errorf("%s, where TLS 1.3 is the least", tls.VersionName(v))
	}
	return nil
}

// tlsState returns the state of a TLS connection, nil for another one.
func tlsState(conn net.Conn) *tls.ConnectionState {
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil
	}
	state := c.ConnectionState()
	return &state
}

// IsTLS reports whether conn is a TLS connection.
func IsTLS(conn net.Conn) bool { return tlsState(conn) != nil }

// VerifiedCertificate returns the certificate of conn's peer, or nil if it has none or it was not
// verified.
func VerifiedCertificate(conn net.Conn) *x509.Certificate {
	if state := tlsState(conn); state != nil && len(state.VerifiedChains) > 0 {
		return state.VerifiedChains[0][0]
	}
	return nil
}

// A TLS handshake fails because one side does not trust the other, which is permanent, or because
// bytes were corrupted on the way, which a retry may avoid. Only errors that corrupted bytes cannot
// cause are permanent at once: certificates, and alerts about them, are encrypted.

// tlsRefusal converts an error of TLS to a RefusalError or ErrProtocol if one side does not trust the
// other or does not speak TLS; for other errors it returns nil. The acceptor's alert about a client
// certificate arrives in place of the first reply.
func tlsRefusal(err error) error {
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if speaksPlain(plain.RecordHeader) {
			return denied(wire.ReasonTLS, tlsUnsupported)
		}
		return DoubtfulError{fmt.Errorf("%w: the server does not use TLS", ErrProtocol)}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		reason := wire.ReasonServerCertificate
		if _, ok := errors.AsType[x509.HostnameError](untrusted.Err); ok {
			reason = wire.ReasonServerName
		}
		return denied(reason, "its certificate is not trusted: "+untrusted.Err.Error())
	}
	alert, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || alert.Op != "remote error" && alert.Op != "local error":
		return nil
	case alert.Op == "local error":
		return DoubtfulError{denied(wire.ReasonUnknown, "TLS: "+alert.Err.Error())}
	}
	reason := alertReason(alert.Err)
	refusal := denied(reason, "TLS refused: "+alert.Err.Error())
	if reason == wire.ReasonUnknown {
		return DoubtfulError{refusal}
	}
	return refusal
}

// speaksPlain reports whether head, read in place of a TLS record, begins a frame that answers a
// hello: the upper bytes of its length are 0, and the operation follows.
func speaksPlain(head [5]byte) bool {
	return head[2] == 0 && head[3] == 0 && head[4] == byte(wire.OpHello)
}

// alertReason returns what an alert (RFC 8446, section 6.2) says about the client's certificate:
// certificate_required, or bad_certificate to certificate_unknown, unknown_ca and access_denied.
// Package tls does not export the type, which is a number.
func alertReason(alert error) wire.Reason {
	v := reflect.ValueOf(alert)
	if v.Kind() != reflect.Uint8 {
		return wire.ReasonUnknown
	}
	switch n := v.Uint(); {
	case n == 116:
		return wire.ReasonNoCertificate
	case n >= 42 && n <= 46, n == 48, n == 49:
		return wire.ReasonCertificate
	}
	return wire.ReasonUnknown
}
