package store_test

import (
	"context"
	"crypto/tls"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// tlsFiles is a directory of certificates, with the log of the code that reads them.
type tlsFiles struct {
	dir string
	testcluster.Log
}

func newTLSFiles(t *testing.T) *tlsFiles {
	t.Helper()
	f := &tlsFiles{dir: t.TempDir()}
	f.make(t, f.dir)
	return f
}

func (f *tlsFiles) make(t *testing.T, dir string) {
	t.Helper()
	_, err := certs.Make(dir, certs.Options{Hosts: []string{"node7", "127.0.0.1"}, Names: []string{"trainer"}, Days: 30})
	require.NoError(t, err)
}

func (f *tlsFiles) path(name string) string { return filepath.Join(f.dir, name+".pem") }

func (f *tlsFiles) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&f.Log, nil)) }

func (f *tlsFiles) server() *store.TLSFiles {
	return &store.TLSFiles{Cert: f.path("server"), Key: f.path("server-key"), CA: f.path("ca"), Logger: f.logger()}
}

// requiring is server for clients that must have a certificate.
func (f *tlsFiles) requiring() *store.TLSFiles {
	server := f.server()
	server.RequireClient = true
	return server
}

func (f *tlsFiles) client() *store.TLSFiles {
	return &store.TLSFiles{Cert: f.path("trainer"), Key: f.path("trainer-key"), CA: f.path("ca"), ServerName: "node7", Logger: f.logger()}
}

func (f *tlsFiles) anonymous() *store.TLSFiles {
	return &store.TLSFiles{CA: f.path("ca"), ServerName: "node7"}
}

// renew replaces the files of f by those of another authority, each of them atomically, as other
// programs do it.
func (f *tlsFiles) renew(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	f.make(t, dir)
	for _, name := range []string{"ca", "ca-key", "server", "server-key", "trainer", "trainer-key"} {
		require.NoError(t, os.Rename(filepath.Join(dir, name+".pem"), f.path(name)))
	}
}

// shaken is the result of a handshake. err is the client's error after it has received the server's
// result.
type shaken struct {
	client, server *tls.Conn
	err, serverErr error
}

func shake(t *testing.T, server, client *store.TLSFiles) shaken {
	t.Helper()
	c, err := client.Client()
	require.NoError(t, err)
	return shakeWith(t, serverTLS(t, server), c)
}

func shakeWith(t *testing.T, s, c *tls.Config) shaken {
	t.Helper()
	a, b := testcluster.Conns(t)
	r := shaken{client: tls.Client(a, c), server: tls.Server(b, s)}
	var serving sync.WaitGroup
	serving.Go(func() {
		if r.serverErr = r.server.HandshakeContext(context.Background()); r.serverErr == nil {
			_, r.serverErr = r.server.Write([]byte{7})
		}
		if r.serverErr != nil {
			_ = b.(*net.TCPConn).CloseWrite()
		}
	})
	r.err = r.client.HandshakeContext(context.Background())
	if r.err == nil {
		_, r.err = r.client.Read(make([]byte, 1))
	}
	if r.err != nil {
		_ = a.(*net.TCPConn).CloseWrite()
	}
	serving.Wait()
	return r
}

// fixed returns the configuration that s has for the next connection, for changes.
func fixed(t *testing.T, s *tls.Config) *tls.Config {
	t.Helper()
	now, err := s.GetConfigForClient(nil)
	require.NoError(t, err)
	return now.Clone()
}

// TestTLSRefuses checks what TestWaysIn does not: certificates that are not for their side, and older
// versions.
func TestTLSRefuses(t *testing.T) {
	f := newTLSFiles(t)
	for want, with := range map[string]func(s, c *store.TLSFiles){
		"remote error: tls: bad certific": func(_, c *store.TLSFiles) { c.Cert, c.Key = f.path("server"), f.path("server-key") },
		"not valid for any names":         func(s, _ *store.TLSFiles) { s.Cert, s.Key = f.path("trainer"), f.path("trainer-key") },
	} {
		server, client := f.server(), f.client()
		with(server, client)
		r := shake(t, server, client)
		require.ErrorContains(t, r.err, want)
		require.Error(t, r.serverErr)
	}
	server, client := f.server(), f.client()
	client.ServerName = "127.0.0.1"
	require.NoError(t, shake(t, server, client).err)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS11} {
		s := serverTLS(t, server)
		c, err := client.Client()
		require.NoError(t, err)
		inner := fixed(t, s)
		inner.MinVersion, inner.MaxVersion = version, version
		require.ErrorContains(t, shakeWith(t, inner, c).err, "protocol version")
		c.MinVersion, c.MaxVersion = version, version
		require.ErrorContains(t, shakeWith(t, s, c).err, "protocol version")
	}
}

func TestTLSTakesUpChangedFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTLSFiles(t)
		server, client := f.server(), f.client()
		config := serverTLS(t, server) // made once, as by a listener
		serial := func() string {
			t.Helper()
			c, err := client.Client()
			require.NoError(t, err)
			r := shakeWith(t, config, c)
			require.NoError(t, r.err)
			return handshake.VerifiedCertificate(r.client).SerialNumber.String() + handshake.VerifiedCertificate(r.server).SerialNumber.String()
		}
		first := serial()
		f.renew(t) // including the authority
		require.Equal(t, first, serial(), "it has not looked again yet")
		time.Sleep(time.Second)
		var many sync.WaitGroup // while one of them reads the files, the others use the old ones
		for range 8 {
			many.Go(func() {
				_, err := config.GetConfigForClient(nil)
				require.NoError(t, err)
				_, err = client.Client()
				require.NoError(t, err)
			})
		}
		many.Wait()
		second := serial()
		require.NotEqual(t, first, second)
		require.Equal(t, 2, strings.Count(f.String(), "changed TLS files loaded"), f.String())

		time.Sleep(time.Hour)
		require.Equal(t, second, serial())
		require.Equal(t, 2, strings.Count(f.String(), "files loaded"), "not read again while they stay")
	})
}

func TestTLSKeepsTheLastGoodFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, next := newTLSFiles(t), newTLSFiles(t)
		server, client := f.server(), f.client()
		good := func() {
			t.Helper()
			time.Sleep(2 * time.Second)
			require.NoError(t, shake(t, server, client).err)
			require.NoError(t, shake(t, server, client).err)
		}
		good()
		for _, name := range []string{"server", "server-key", "ca", "trainer", "trainer-key"} {
			was, err := os.ReadFile(f.path(name))
			require.NoError(t, err)
			other, err := os.ReadFile(next.path(name))
			require.NoError(t, err)
			if name == "ca" {
				other = []byte("no certificate\n")
			}
			// A file may be newer than the other file of its pair, incomplete, or empty.
			for _, bad := range [][]byte{other, was[:len(was)/2], nil} {
				require.NoError(t, os.WriteFile(f.path(name), bad, 0o600))
				good()
			}
			require.NoError(t, os.Remove(f.path(name)))
			good()
			require.NoError(t, os.WriteFile(f.path(name), was, 0o600))
			good()
			require.Contains(t, f.String(), "old ones stay")
			require.Contains(t, f.String(), f.path(name))
		}
		said := strings.Count(f.String(), "old ones stay")
		require.NoError(t, os.WriteFile(f.path("ca"), nil, 0o600))
		for range 10 {
			good()
		}
		require.Equal(t, said+2, strings.Count(f.String(), "old ones stay"), "each side says it once")
	})
}

func TestTLSFilesAtFirst(t *testing.T) {
	f := newTLSFiles(t)
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(f.path(name), []byte(text), 0o600))
		return f.path(name)
	}
	empty := write("empty", "")
	for want, with := range map[string]func(*store.TLSFiles){
		f.path("none"): func(o *store.TLSFiles) { o.Cert = f.path("none") },
		f.path("nkey"): func(o *store.TLSFiles) { o.Key = f.path("nkey") },
		f.path("nca"):  func(o *store.TLSFiles) { o.CA = f.path("nca") },
		empty:          func(o *store.TLSFiles) { o.CA = empty },
		f.path("client") + " " + empty: func(o *store.TLSFiles) {
			o.Cert, o.Key = write("client", "x"), empty
		},
		"private key does not match": func(o *store.TLSFiles) { o.Key = f.path("ca-key") },
	} {
		server, client := f.server(), f.client()
		with(server)
		with(client)
		_, serverErr := server.Server()
		_, clientErr := client.Client()
		for _, err := range []error{serverErr, clientErr} {
			require.ErrorIs(t, err, store.ErrInvalid)
			require.ErrorContains(t, err, want)
		}
	}
	blind, half := f.requiring(), f.client()
	blind.CA, half.Cert = "", ""
	for want, config := range map[string]func() (*tls.Config, error){
		"a server needs": f.anonymous().Server, "it needs the CA": blind.Server, "a certificate and": half.Client,
	} {
		_, err := config()
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	missing := f.server()
	missing.Cert = f.path("none")
	_, err := missing.Server()
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = (&store.TLSFiles{}).Client()
	require.NoError(t, err, "the system's authorities")
}

func TestTLSKeyThatOthersMayRead(t *testing.T) {
	f := newTLSFiles(t)
	require.NoError(t, os.Chmod(f.path("server-key"), 0o644))
	require.NoError(t, shake(t, f.server(), f.client()).err)
	require.Contains(t, f.String(), "chmod 600 "+f.path("server-key"))
	require.NotContains(t, f.String(), f.path("trainer-key"))
}

// flip changes one bit of the byte that is at bytes ahead, if it is in b; negative: of none.
func flip(at *atomic.Int32, b []byte) {
	if i := int(at.Add(-int32(len(b)))) + len(b); i >= 0 && i < len(b) {
		b[i] ^= 0x20
	}
}

// TestABrokenTLSHandshakeIsTriedAgain checks that a client retries a TLS handshake that breaks,
// even if it only sees that the handshake failed. A changed byte neither ends the session nor is
// taken for a refusal.
func TestABrokenTLSHandshakeIsTriedAgain(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t)
	s := serve(t, &store.Server{TLS: serverTLS(t, f.server()), Limits: store.ServerLimits{ReconnectTimeout: time.Minute, Handshake: time.Second}}, tcp)
	var up, down atomic.Int32 // bytes until the change in each direction of the next connection; negative: no change
	var last atomic.Pointer[tapped]
	dialFlipping := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		var read, written atomic.Int32
		read.Store(down.Swap(-1))
		written.Store(up.Swap(-1))
		c := &tapped{conn, func(b []byte) { flip(&read, b) }, func(b []byte) { flip(&written, b) }}
		last.Store(c)
		return c, err
	}
	up.Store(-1)
	down.Store(-1)
	o := &store.DialOptions{Dial: dialFlipping, TLS: f.client().Client}
	c, err := store.Dial(bounded(t), s.addr, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	held, err := c.Lease(bounded(t), time.Minute)
	require.NoError(t, err)
	for name, which := range map[string]*atomic.Int32{"up": &up, "down": &down} {
		for at := int32(0); at < 2000; at += 97 {
			which.Store(at)
			_ = last.Load().Close()
			require.NoError(t, c.Set(bounded(t), "k", nil, &store.SetOptions{Lease: held}), "byte %d %s", at, name)
			up.Store(-1)
			down.Store(-1)
		}
	}
	for at := int32(0); at < 1000; at += 111 { // also at the first connection
		down.Store(at)
		d, err := store.Dial(bounded(t), s.addr, o)
		require.NoError(t, err, "byte %d", at)
		require.NoError(t, d.Close())
	}
}
