package handshake_test

import (
	"bytes"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/wire"
)

func secretOf(c string) []byte { return []byte(strings.Repeat(c, 16)) }

func TestProofBytes(t *testing.T) {
	client, server := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for who, want := range map[string]string{
		// Computed with Python's hmac.
		handshake.ProofClient: "8c09af154361f75a516b86e2d69d0d1c6b1d9ec079421dadbd020fc576c90c67",
		handshake.ProofServer: "649f01d533588fbeb5daf876459e5b0abff653b2338e3e405415b654d222205f",
	} {
		require.Equal(t, want, hex.EncodeToString(handshake.Proof(secretOf("s"), who, client, server, []byte("bind"))))
	}
}

func TestProofIsOfOneHandshake(t *testing.T) {
	secret, client, server, binding := secretOf("s"), handshake.NewNonce(), handshake.NewNonce(), handshake.NewNonce()
	require.NotEqual(t, client, server)
	given := handshake.Proof(secret, handshake.ProofClient, client, server, binding)
	require.True(t, handshake.Proves(given, secret, handshake.ProofClient, client, server, binding))
	for name, ok := range map[string]bool{
		"secret":       handshake.Proves(given, secretOf("t"), handshake.ProofClient, client, server, binding),
		"side":         handshake.Proves(given, secret, handshake.ProofServer, client, server, binding),
		"client nonce": handshake.Proves(given, secret, handshake.ProofClient, handshake.NewNonce(), server, binding),
		"server nonce": handshake.Proves(given, secret, handshake.ProofClient, client, handshake.NewNonce(), binding),
		"swapped":      handshake.Proves(given, secret, handshake.ProofClient, server, client, binding),
		"binding":      handshake.Proves(given, secret, handshake.ProofClient, client, server, handshake.NewNonce()),
		"no binding":   handshake.Proves(given, secret, handshake.ProofClient, client, server, nil),
		"cut":          handshake.Proves(given[:31], secret, handshake.ProofClient, client, server, binding),
		"empty":        handshake.Proves(nil, secret, handshake.ProofClient, client, server, binding),
	} {
		require.False(t, ok, name)
	}
	// Nonces of other lengths may hash alike, and are refused for that reason.
	long, short := append(bytes.Clone(client), server[0]), server[1:]
	require.Equal(t, given, handshake.Proof(secret, handshake.ProofClient, long, short, binding))
	require.False(t, handshake.Proves(given, secret, handshake.ProofClient, long, short, binding))
	// A peer without a secret cannot prove the empty secret.
	require.False(t, handshake.Proves(handshake.Proof(nil, handshake.ProofClient, client, server, nil), nil, handshake.ProofClient, client, server, nil))
}

// TestAFalseAcceptorProvesNothing checks that a dialer refuses an acceptor that does not know the
// secret, whichever reply that sends.
func TestAFalseAcceptorProvesNothing(t *testing.T) {
	for name, proofs := range map[string]func(mine, theirs, given []byte) [][]byte{
		"no proof":         func(_, _, _ []byte) [][]byte { return nil },
		"zeros":            func(_, _, _ []byte) [][]byte { return [][]byte{make([]byte, 32)} },
		"the client's own": func(_, _, given []byte) [][]byte { return [][]byte{given} },
		"a guess": func(mine, theirs, _ []byte) [][]byte {
			return [][]byte{handshake.Proof(secretOf("x"), handshake.ProofServer, mine, theirs, nil)}
		},
		"one more": func(mine, theirs, _ []byte) [][]byte {
			return [][]byte{handshake.Proof(secretOf("s"), handshake.ProofServer, mine, theirs, nil), nil}
		},
	} {
		dialed, accepted := testcluster.Conns(t)
		go func() {
			defer accepted.Close()
			in := &handshake.FrameReader{Limit: handshake.MaxFrame}
			receive := func() (req wire.Request) {
				h, body, _, err := in.Read(accepted, make([]byte, 4096))
				assert.NoError(t, err)
				assert.NoError(t, req.Parse(h, bytes.Clone(body)))
				return req
			}
			_, _ = io.ReadFull(accepted, make([]byte, len(wire.Preface)))
			mine, theirs := receive().Token, handshake.NewNonce()
			_, _ = accepted.Write(wire.AppendReply(nil, wire.OpProof, 0, &wire.Reply{Value: theirs}))
			_, _ = accepted.Write(wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{N: 1, Values: proofs(mine, theirs, receive().Value)}))
			_, _ = io.Copy(io.Discard, accepted)
		}()
		_, err := handshake.Open(t.Context(), dialed, &handshake.Offer{Secret: secretOf("s")})
		require.ErrorContains(t, err, "did not prove", name)
	}
}
