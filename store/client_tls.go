package store

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"reflect"
)

// A TLS handshake fails because one side does not trust the other, which stays so, or because what came was not what was sent, which
// another attempt need not meet again. Only what a byte changed on its way cannot cause is taken for a refusal at once: certificates, and
// what is said of them, are encrypted.

// mostDoubts is how often a dial tries, when each handshake fails in a way that may be either.
const mostDoubts = 3

// doubtful is an error of a handshake that may be a refusal, or broken on its way. Its text is that of the refusal.
type doubtful struct{ error }

func (d doubtful) Unwrap() error { return d.error }

func isDoubtful(err error) bool {
	_, is := errors.AsType[doubtful](err)
	return is
}

// refusal is what an error of TLS says of either side not trusting the other, or not speaking TLS at all; nil if it is another error. What
// the server has against a client's certificate comes in the place of the first answer.
func refusal(err error) error {
	if plain, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if speaksPlain(plain.RecordHeader) {
			return denied(lacksTLS)
		}
		return doubtful{fmt.Errorf("%w: it speaks no TLS", ErrProtocol)}
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return denied("its certificate is not trusted: " + untrusted.Err.Error())
	}
	alert, ok := errors.AsType[*net.OpError](err)
	switch {
	case !ok || alert.Op != "remote error" && alert.Op != "local error":
		return nil
	case alert.Op == "remote error" && isOfCertificate(alert.Err):
		return denied("it refuses TLS: " + alert.Err.Error())
	case alert.Op == "remote error":
		return doubtful{denied("it refuses TLS: " + alert.Err.Error())}
	}
	return doubtful{denied("TLS: " + alert.Err.Error())}
}

// isOfCertificate reports whether an alert (RFC 8446, 6.2) is of a certificate, or denies access: bad_certificate to certificate_unknown,
// unknown_ca, access_denied, certificate_required. Package tls has no exported type for it; it is a number.
func isOfCertificate(alert error) bool {
	v := reflect.ValueOf(alert)
	if v.Kind() != reflect.Uint8 {
		return false
	}
	n := v.Uint()
	return n >= 42 && n <= 46 || n == 48 || n == 49 || n == 116
}
