package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"github.com/muster-pg/muster/wire"
)

// Authentication. Both sides prove that they know a secret without sending it: each sends a nonce,
// and then the HMAC of both nonces. The client proves first, so that a server that does not know
// the secret gets no proof of another one.
const (
	nonceLen    = 32
	proofLen    = sha256.Size
	bindingLen  = 32
	minSecret   = 16 // a false server gets a proof, and can try guesses on it offline
	maxSecret   = 4096
	proofClient = "muster 1 client"
	proofServer = "muster 1 server"                                                    // differs from proofClient, so that a proof cannot be sent back to its author
	makeSecret  = `"(umask 077; head -c 32 /dev/urandom | base64 > secret)" makes one` //nolint:gosec // says how to make a secret
)

// newNonce returns a new nonce, so that a proof is valid for one handshake only.
func newNonce() []byte {
	b := make([]byte, nonceLen)
	_, _ = rand.Read(b) // it never fails
	return b
}

// proof returns the proof of who, one of the labels above.
func proof(secret []byte, who string, clientNonce, serverNonce, binding []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(who))
	h.Write([]byte{0})
	h.Write(clientNonce)
	h.Write(serverNonce)
	h.Write(binding)
	return h.Sum(nil)
}

// proves reports whether given is the proof of who. Nonces have a fixed length, so that the hashes
// of two handshakes differ.
func proves(given, secret []byte, who string, clientNonce, serverNonce, binding []byte) bool {
	same := hmac.Equal(given, proof(secret, who, clientNonce, serverNonce, binding))
	return same && len(clientNonce) == nonceLen && len(serverNonce) == nonceLen && len(secret) >= minSecret
}

// matchSecret returns the indexes of the accesses whose secret the client has proved; ok reports
// whether there are any. It tries all of them in any case, so that the time does not depend on
// which one matches.
func matchSecret(accesses []Access, given, clientNonce, serverNonce, binding []byte) (matched []int, ok bool) {
	for i := range accesses {
		if proves(given, accesses[i].Secret, proofClient, clientNonce, serverNonce, binding) {
			matched = append(matched, i)
		}
	}
	return matched, len(matched) > 0
}

// binding returns key material that only the two ends of a TLS connection know (RFC 9266), which
// makes a proof worthless for a man in the middle. It is nil without TLS.
func binding(conn net.Conn) ([]byte, error) {
	c, ok := conn.(interface{ ConnectionState() tls.ConnectionState })
	if !ok {
		return nil, nil
	}
	state := c.ConnectionState()
	if !state.HandshakeComplete {
		return nil, errors.New("the TLS handshake is not over")
	}
	return state.ExportKeyingMaterial("EXPORTER-muster-1", nil, bindingLen)
}

// checkSecret rejects a secret that could be guessed.
func checkSecret(secret []byte) error {
	if bad := badSecret(secret); bad != "" {
		return secretError("", "%s", bad)
	}
	return nil
}

func badSecret(secret []byte) string {
	switch n := len(secret); {
	case n < minSecret:
		return fmt.Sprintf("%d bytes are too few, it needs %d: %s", n, minSecret, makeSecret)
	case n > maxSecret:
		return fmt.Sprintf("more than %d bytes: %s", maxSecret, makeSecret)
	}
	return ""
}

// ReadSecret reads the secret in file, without a final end of line. The file must not be accessible
// to other users than its owner.
func ReadSecret(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: err}
	}
	defer f.Close()
	open, err := readByOthers(f)
	if open {
		return nil, secretError(file, "other users can read it: chmod 600 %s, and if they have read it, %s", file, makeSecret)
	}
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, maxSecret+3)) // with an end of line, and one byte more
	}
	if err != nil {
		return nil, &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: err}
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if bad := badSecret(b); bad != "" {
		return nil, secretError(file, "%s", bad)
	}
	return b, nil
}

// readByOthers reports whether the mode of f gives other users any access. On Windows, modes
// do not show that.
func readByOthers(f *os.File) (bool, error) {
	i, err := f.Stat()
	if err != nil {
		return false, err
	}
	return runtime.GOOS != "windows" && i.Mode().Perm()&0o077 != 0, nil
}

func secretError(file, format string, args ...any) error {
	return &Error{Op: "secret", Key: file, Code: wire.CodeInvalid, Err: fmt.Errorf(format, args...)}
}
