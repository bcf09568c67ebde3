package tcpstore_test

import (
	"crypto/tls"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

var secret = []byte("sixteen bytes or more")

func withTLS(t *testing.T) (server *tls.Config, client func() (*tls.Config, error)) {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{Hosts: []string{"127.0.0.1"}, Days: 1})
	require.NoError(t, err)
	server, err = (&store.TLSFiles{Cert: filepath.Join(dir, "server.pem"), Key: filepath.Join(dir, "server-key.pem")}).Server()
	require.NoError(t, err)
	return server, (&store.TLSFiles{CA: filepath.Join(dir, "ca.pem"), ServerName: "127.0.0.1"}).Client
}

// TestInsideTLS checks that a server that requires TLS accepts a client that wraps the protocol in it.
// torch_access.txt of cmd/muster has those that do not, and the prefixes that are opened to them.
func TestInsideTLS(t *testing.T) {
	server, client := withTLS(t)
	c := serve(t, &tcpstore.Protocol{}, &store.Server{TLS: server}).raw(t)
	config, err := client()
	require.NoError(t, err)
	c.Conn = tls.Client(c.Conn, config)
	c.send(of(tcpwire.OpValidate))
	c.works()
}

// TestServerLimits checks that the limits of a server apply to all its protocols.
func TestServerLimits(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{}, &store.Server{Limits: store.ServerLimits{PerAddr: 2, Handshake: 200 * time.Millisecond}})
	one, half := s.client(t), s.raw(t)
	half.write([]byte(tcpwire.Preface[:3]))
	third := s.raw(t)
	third.send(of(tcpwire.OpValidate))
	_, _ = third.Read(make([]byte, 1))
	s.Says(t, "the limit is 2 connections from one address")
	half.closed()
	s.Says(t, "i/o timeout")
	one.works() // it has sent nothing for longer than the handshake timeout
	s.client(t).works()
}

// TestOlderClients checks that a client before torch 2.2 is refused, and that the log says which peer
// it is and what to do. Its first message is an ADD of init/, whose number was 3.
func TestOlderClients(t *testing.T) {
	s := current(t)
	c := s.raw(t)
	c.write(append([]byte("\x03"), c.bytes(add(tcpwire.InitKey, 1))[1:]...))
	c.closed()
	s.Says(t, "peer="+c.LocalAddr().String())
	s.Says(t, "the client is of a torch before 2.2")
	s.client(t).works()
}
