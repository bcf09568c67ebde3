package handshake

import (
	"crypto/x509"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// The labels of proofs.
const (
	ProofClient = proofClient
	ProofServer = proofServer
)

// Proof returns the proof of who for two nonces and the binding.
func Proof(secret []byte, who string, client, server, binding []byte) []byte {
	return (&exchange{client, server, binding}).proof(secret, who)
}

// Proves reports whether given is that proof.
func Proves(given, secret []byte, who string, client, server, binding []byte) bool {
	return (&exchange{client, server, binding}).proves(given, secret, who)
}

// MatchCertificate returns the indexes of the credentials that cert has.
func MatchCertificate(credentials []Credential, cert *x509.Certificate) []int {
	a := acceptor{Policy: &Policy{Credentials: credentials}}
	return a.matchCertificate(cert)
}

// Cut splits a stream that arrives in pieces into frames, with a buffer of room bytes.
func Cut(pieces [][]byte, room int) (heads []wire.Header, bodies []string, err error) {
	f, buf := FrameReader{Inbox: transport.Inbox{First: 64 << 10}, Limit: wire.MaxBody}, make([]byte, room)
	for _, p := range pieces {
		for len(p) > 0 {
			n := copy(f.Buffer(buf), p)
			f.Advance(n)
			p = p[n:]
			for {
				h, body, _, ok, err := f.Next()
				if err != nil {
					return heads, bodies, err
				}
				if !ok {
					break
				}
				heads, bodies = append(heads, h), append(bodies, string(body))
			}
			f.Compact()
			clear(buf)
		}
	}
	return heads, bodies, nil
}
