package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
)

func TestMakeDefaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "tls")
	made, err := certs.Make(dir, certs.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem"}, made.Files)
	require.WithinDuration(t, time.Now().AddDate(0, 0, 365), made.Until, time.Minute)
	for name, mode := range map[string]fs.FileMode{
		"": 0o700 | fs.ModeDir, "ca-key.pem": 0o600, "server-key.pem": 0o600, "client-key.pem": 0o600,
	} {
		i, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, mode, i.Mode(), name)
	}
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if h, err := os.Hostname(); err == nil {
		hosts = append(hosts, h)
	}
	server := leaf(t, dir, "server")
	for _, h := range hosts {
		require.NoError(t, verify(t, dir, server, h, x509.ExtKeyUsageServerAuth), h)
	}
	require.Error(t, verify(t, dir, server, "elsewhere", x509.ExtKeyUsageServerAuth))
	require.Error(t, verify(t, dir, server, "", x509.ExtKeyUsageClientAuth), "a server is no client")
	client := leaf(t, dir, "client")
	require.Equal(t, "client", client.Subject.CommonName)
	require.NoError(t, verify(t, dir, client, "", x509.ExtKeyUsageClientAuth))
	require.Error(t, verify(t, dir, client, "", x509.ExtKeyUsageServerAuth), "a client is no server")
	require.False(t, client.IsCA)
	require.True(t, leaf(t, dir, "ca").IsCA)
}

func TestMakeForHostsAndNames(t *testing.T) {
	dir := t.TempDir()
	hosts := []string{"node7", "*.example.com", "10.0.0.7", "fd00::7", "10-0-0-7", "my_service", "::ffff:10.0.0.8", "3f2a"}
	_, err := certs.Make(dir, certs.Options{Hosts: hosts, Names: []string{"trainer", "eval.1"}, Days: 30})
	require.NoError(t, err)
	server := leaf(t, dir, "server")
	for _, h := range []string{"node7", "a.example.com", "10.0.0.7", "fd00::7", "10-0-0-7", "my_service", "10.0.0.8", "3f2a"} {
		require.NoError(t, verify(t, dir, server, h, x509.ExtKeyUsageServerAuth), h)
	}
	require.Error(t, verify(t, dir, server, "localhost", x509.ExtKeyUsageServerAuth))
	require.WithinDuration(t, time.Now().AddDate(0, 0, 30), server.NotAfter, time.Minute)
	require.Less(t, server.NotBefore, time.Now().Add(-time.Minute), "clocks differ")
	require.Equal(t, "eval.1", leaf(t, dir, "eval.1").Subject.CommonName)
	require.NoFileExists(t, filepath.Join(dir, "client.pem"))
}

func TestMakeAgainSignsMore(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{})
	require.NoError(t, err)
	ca := read(t, dir, "ca.pem")
	_, err = certs.Make(dir, certs.Options{})
	require.ErrorContains(t, err, "say which hosts or names")

	made, err := certs.Make(dir, certs.Options{Names: []string{"viewer"}})
	require.NoError(t, err)
	require.Equal(t, []string{"viewer.pem", "viewer-key.pem"}, made.Files)
	require.NoError(t, verify(t, dir, leaf(t, dir, "viewer"), "", x509.ExtKeyUsageClientAuth))
	require.Equal(t, ca, read(t, dir, "ca.pem"))

	made, err = certs.Make(dir, certs.Options{Names: []string{"old"}, Days: 36500})
	require.NoError(t, err)
	require.Equal(t, leaf(t, dir, "ca").NotAfter, made.Until, "no pair outlives its authority")
}

func TestMakeWithAnExpiredAuthority(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		_, err := certs.Make(dir, certs.Options{Days: 1})
		require.NoError(t, err)
		time.Sleep(11 * 366 * 24 * time.Hour)
		_, err = certs.Make(dir, certs.Options{Names: []string{"late"}})
		require.ErrorContains(t, err, "it has expired, on 20")
	})
}

func verify(t *testing.T, dir string, c *x509.Certificate, host string, use x509.ExtKeyUsage) error {
	t.Helper()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(read(t, dir, "ca.pem"))))
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

// leaf returns a certificate, whose key is in the same directory.
func leaf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem"))
	require.NoError(t, err)
	return pair.Leaf
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(b)
}
