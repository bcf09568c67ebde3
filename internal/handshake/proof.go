package handshake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
)

// Both sides prove that they know a secret without sending it: each sends a nonce, and then the HMAC
// of both nonces. The dialer proves first, so that an acceptor that does not know the secret gets no
// proof of another one. Over TLS the HMAC covers key material of the connection, so that a man in the
// middle cannot pass a proof on, whichever certificates the ends accept.
const (
	nonceLen   = 32
	bindingLen = 32
	minSecret  = 16 // a false acceptor gets a proof, and can try guesses on it offline

	proofClient = "muster 1 client"
	proofServer = "muster 1 server" // differs from proofClient, so that a proof cannot be sent back to its author

	// MaxSecret is the longest secret, in bytes.
	MaxSecret = 4096
	// MakeSecret says how to make a secret.
	MakeSecret = `"(umask 077; head -c 32 /dev/urandom | base64 > secret)" makes one` //nolint:gosec // it is none
)

// NewNonce returns 32 random bytes. Each proof is for the nonces of one handshake only.
func NewNonce() []byte {
	b := make([]byte, nonceLen)
	_, _ = rand.Read(b) // it never fails
	return b
}

// BadSecret returns why secret could be guessed, or is too long, and "" for a good one.
func BadSecret(secret []byte) string {
	switch n := len(secret); {
	case n < minSecret:
		return fmt.Sprintf("%d bytes are too few, it needs %d: %s", n, minSecret, MakeSecret)
	case n > MaxSecret:
		return fmt.Sprintf("more than %d bytes: %s", MaxSecret, MakeSecret)
	}
	return ""
}

// exchange is what the proofs of one handshake are about.
type exchange struct {
	client, server []byte // nonces
	binding        []byte // nil without TLS
}

// newExchange returns the exchange of two nonces over conn, which has received one of them. The key
// material of TLS is that of RFC 9266, which only the two ends of a connection know.
func newExchange(conn net.Conn, client, server []byte) (e exchange, err error) {
	e.client, e.server = client, server
	state := tlsState(conn)
	if state == nil {
		return e, nil
	}
	e.binding, err = state.ExportKeyingMaterial("EXPORTER-muster-1", nil, bindingLen)
	return e, err
}

// proof returns the proof of who, proofClient or proofServer.
func (e *exchange) proof(secret []byte, who string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(who))
	h.Write([]byte{0})
	h.Write(e.client)
	h.Write(e.server)
	h.Write(e.binding)
	return h.Sum(nil)
}

// proves reports, in constant time, whether given is the proof of who. Nonces have a fixed length, so
// that the hashes of two handshakes differ.
func (e *exchange) proves(given, secret []byte, who string) bool {
	same := hmac.Equal(given, e.proof(secret, who))
	return same && len(e.client) == nonceLen && len(e.server) == nonceLen && len(secret) >= minSecret
}

// match returns the indexes of the credentials whose secret the client has proved. It tries all of
// them in any case, so that the time does not depend on which one matches.
func (e *exchange) match(credentials []Credential, given []byte) (matched []int) {
	for i := range credentials {
		if e.proves(given, credentials[i].Secret, proofClient) {
			matched = append(matched, i)
		}
	}
	return matched
}
