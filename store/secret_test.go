package store_test

import (
	"bytes"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func secretOf(c string) []byte { return []byte(strings.Repeat(c, 16)) }

func TestProofBytes(t *testing.T) {
	client, server := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for who, want := range map[string]string{
		// Computed with Python's hmac.
		store.ProofClient: "8c09af154361f75a516b86e2d69d0d1c6b1d9ec079421dadbd020fc576c90c67",
		store.ProofServer: "649f01d533588fbeb5daf876459e5b0abff653b2338e3e405415b654d222205f",
	} {
		require.Equal(t, want, hex.EncodeToString(store.Proof(secretOf("s"), who, client, server, []byte("bind"))))
	}
}

func TestProofIsOfOneHandshake(t *testing.T) {
	secret, client, server, binding := secretOf("s"), store.NewNonce(), store.NewNonce(), store.NewNonce()
	require.NotEqual(t, client, server)
	given := store.Proof(secret, store.ProofClient, client, server, binding)
	require.True(t, store.Proves(given, secret, store.ProofClient, client, server, binding))
	for name, ok := range map[string]bool{
		"secret":       store.Proves(given, secretOf("t"), store.ProofClient, client, server, binding),
		"side":         store.Proves(given, secret, store.ProofServer, client, server, binding),
		"client nonce": store.Proves(given, secret, store.ProofClient, store.NewNonce(), server, binding),
		"server nonce": store.Proves(given, secret, store.ProofClient, client, store.NewNonce(), binding),
		"swapped":      store.Proves(given, secret, store.ProofClient, server, client, binding),
		"binding":      store.Proves(given, secret, store.ProofClient, client, server, store.NewNonce()),
		"no binding":   store.Proves(given, secret, store.ProofClient, client, server, nil),
		"cut":          store.Proves(given[:31], secret, store.ProofClient, client, server, binding),
		"empty":        store.Proves(nil, secret, store.ProofClient, client, server, binding),
	} {
		require.False(t, ok, name)
	}
	// Nonces of other lengths may hash alike, and are refused for that reason.
	long, short := append(bytes.Clone(client), server[0]), server[1:]
	require.Equal(t, given, store.Proof(secret, store.ProofClient, long, short, binding))
	require.False(t, store.Proves(given, secret, store.ProofClient, long, short, binding))
	// A peer without a secret cannot prove the empty secret.
	require.False(t, store.Proves(store.Proof(nil, store.ProofClient, client, server, nil), nil, store.ProofClient, client, server, nil))
}

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	long := strings.Repeat("x", 4096)
	for text, want := range map[string]string{
		"0123456789abcdef":     "0123456789abcdef",
		"0123456789abcdef\n":   "0123456789abcdef",
		"0123456789abcdef\r\n": "0123456789abcdef",
		" 0123456789abcdef \n": " 0123456789abcdef ",
		"0123456789abcdef\n\n": "0123456789abcdef\n",
		long + "\r\n":          long,
	} {
		got, err := store.ReadSecret(write("good", text))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for text, want := range map[string]string{
		"":                  "0 bytes are too few",
		"0123456789abcde\n": "15 bytes are too few, it needs 16",
		long + "x":          "more than 4096",
		long + "xxxxxxx":    "more than 4096",
		long + "\nx":        "more than 4096",
	} {
		file := write("bad", text)
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, file)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "(umask 077; head -c 32 /dev/urandom | base64 > secret)")
	}
	_, err := store.ReadSecret(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = store.ReadSecret(dir)
	require.Error(t, err)
	for _, mode := range []fs.FileMode{0o644, 0o640, 0o604, 0o620, 0o601} {
		file := write("open", "0123456789abcdef")
		require.NoError(t, os.Chmod(file, mode))
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid, mode)
		require.ErrorContains(t, err, "chmod 600 "+file)
	}
}
