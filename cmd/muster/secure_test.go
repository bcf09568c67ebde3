package main_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// desk is a directory with secrets, and with certificates in tls.
type desk string

func newDesk(t *testing.T) desk {
	t.Helper()
	d := desk(t.TempDir())
	if r := run(t, "certs", d.path("tls"), "--name", "trainer,viewer"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	d.write(t, "secret", "0123456789abcdef\n")
	d.write(t, "other", "fedcba9876543210\n")
	return d
}

func (d desk) path(name string) string { return filepath.Join(string(d), name) }

func (d desk) write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(d.path(name), []byte(text), 0o600))
}

func (d desk) serverFlags() []string {
	return []string{"--tls-cert", d.path("tls/server.pem"), "--tls-key", d.path("tls/server-key.pem"), "--tls-ca", d.path("tls/ca.pem")}
}
