package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"reflect"

	"github.com/muster-pg/muster/wire"
)

// A TLS handshake fails because one side does not trust the other, which is permanent, or because
// bytes were corrupted on the way, which a retry may avoid. Only errors that corrupted bytes cannot
// cause are permanent at once: certificates, and alerts about them, are encrypted.

// maxTLSAttempts is how often a dial tries while each handshake fails with an ambiguous error.
const maxTLSAttempts = 3

// ambiguousTLSError is a handshake error that may be permanent or due to corruption. Its text is
// that of the permanent error.
type ambiguousTLSError struct{ error }

func (d ambiguousTLSError) Unwrap() error { return d.error }

func isAmbiguousTLS(err error) bool {
	_, is := errors.AsType[ambiguousTLSError](err)
	return is
}

// tlsRefusal converts an error of TLS to ErrDenied or ErrProtocol if one side does not trust the
// other or does not speak TLS; for other errors it returns nil. The server's alert about a client
// certificate arrives in place of the first reply.
func tlsRefusal(err error) error {
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if speaksPlain(plain.RecordHeader) {
			return denied(wire.ReasonTLS, tlsUnsupported)
		}
		return ambiguousTLSError{fmt.Errorf("%w: the server does not use TLS", ErrProtocol)}
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
		return ambiguousTLSError{denied(wire.ReasonUnknown, "TLS: "+alert.Err.Error())}
	}
	reason := alertReason(alert.Err)
	refusal := denied(reason, "TLS refused: "+alert.Err.Error())
	if reason == wire.ReasonUnknown {
		return ambiguousTLSError{refusal}
	}
	return refusal
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
