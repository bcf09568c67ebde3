package store

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"reflect"
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
			return denied(tlsUnsupported)
		}
		return ambiguousTLSError{fmt.Errorf("%w: the server does not use TLS", ErrProtocol)}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return denied("its certificate is not trusted: " + untrusted.Err.Error())
	}
	alert, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || alert.Op != "remote error" && alert.Op != "local error":
		return nil
	case alert.Op == "remote error" && isCertificateAlert(alert.Err):
		return denied("TLS refused: " + alert.Err.Error())
	case alert.Op == "remote error":
		return ambiguousTLSError{denied("TLS refused: " + alert.Err.Error())}
	}
	return ambiguousTLSError{denied("TLS: " + alert.Err.Error())}
}

// isCertificateAlert reports whether an alert (RFC 8446, section 6.2) is about a certificate or
// denies access: bad_certificate to certificate_unknown, unknown_ca, access_denied,
// certificate_required. Package tls does not export the type, which is a number.
func isCertificateAlert(alert error) bool {
	v := reflect.ValueOf(alert)
	if v.Kind() != reflect.Uint8 {
		return false
	}
	n := v.Uint()
	return n >= 42 && n <= 46 || n == 48 || n == 49 || n == 116
}
