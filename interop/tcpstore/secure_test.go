package tcpstore_test

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
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

// refused checks that a client is refused without a reply, and that the log says why.
func (s *service) refused(t *testing.T, why string) {
	t.Helper()
	c := s.raw(t)
	c.send(of(tcpwire.OpValidate), set("/a", "1"))
	c.closed()
	s.Says(t, why)
	_, err := s.Get(s.ctx, "a")
	require.ErrorIs(t, err, store.ErrNotFound)
}

func TestRefusedWhereASecretIsWanted(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{}, &store.Server{Access: []store.Access{{Secret: secret, Write: true}}})
	s.refused(t, "wants a secret or a certificate: open a prefix")
	ours := testcluster.Dial(t, s.addr, &store.DialOptions{Secret: secret})
	require.NoError(t, ours.Set(s.ctx, "a", nil, nil))
}

func TestRefusedWhereTLSIsWanted(t *testing.T) {
	server, client := withTLS(t)
	s := serve(t, &tcpstore.Protocol{}, &store.Server{TLS: server})
	s.refused(t, "wants TLS: open a prefix")
	ours := testcluster.Dial(t, s.addr, &store.DialOptions{TLS: client})
	require.NoError(t, ours.Set(s.ctx, "works", nil, nil))
	_, err := store.Dial(s.ctx, s.addr, nil)
	require.ErrorContains(t, err, "TLS", "a client of ours without it receives the reason")
	c := s.raw(t) // a client that wraps the protocol in TLS is accepted
	config, err := client()
	require.NoError(t, err)
	c.Conn = tls.Client(c.Conn, config)
	c.send(of(tcpwire.OpValidate))
	c.works()
}

func TestAPrefixOpenedByName(t *testing.T) {
	server, client := withTLS(t)
	s := serve(t, &tcpstore.Protocol{}, &store.Server{TLS: server, Access: []store.Access{
		{Protocol: "torch", Prefix: "python/", Write: true}, {Secret: secret, Write: true},
	}})
	require.NoError(t, s.Set(s.ctx, "mine", nil, nil))
	c := s.client(t)
	c.works()
	require.Equal(t, []string{"/works"}, c.call(of(tcpwire.OpListKeys)).Keys)
	require.EqualValues(t, tcpwire.NotReady, c.call(check("/mine")).N)
	c.send(tcpwire.Request{Op: tcpwire.OpQueuePush, Key: "/q", Value: []byte("v")})
	ours := testcluster.Dial(t, s.addr, &store.DialOptions{TLS: client, Secret: secret})
	v, err := store.Prefix(ours, "python/").Pop(s.ctx, "q")
	require.NoError(t, err)
	require.Equal(t, "v", string(v))
	_, err = store.Dial(s.ctx, s.addr, &store.DialOptions{TLS: client})
	require.ErrorIs(t, err, store.ErrDenied, "others have to know the secret")
}

// TestAPrefixOpenedBeyondLoopback checks that a listener beyond loopback requires Insecure if a
// prefix is open to all clients, whichever credentials other prefixes require.
func TestAPrefixOpenedBeyondLoopback(t *testing.T) {
	required, _ := withTLS(t)
	required.ClientAuth = tls.RequireAndVerifyClientCert
	open := store.Access{Protocol: "torch", Prefix: "python/"}
	for name, srv := range map[string]*store.Server{
		"alone":                   {Access: []store.Access{open}},
		"beside a secret":         {Access: []store.Access{{Secret: secret, Write: true}, open}},
		"beside TLS certificates": {TLS: required, Access: []store.Access{open}},
	} {
		srv.Protocol = &tcpstore.Protocol{}
		require.NoError(t, srv.Check(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}), name)
		err := srv.Check(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)})
		require.ErrorIs(t, err, store.ErrInsecure, name)
		require.ErrorContains(t, err, `could use what is below "python/"`, name)
		srv.Insecure = true
		require.NoError(t, srv.Check(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}), name)
	}
}

func TestAPrefixToRead(t *testing.T) {
	s := serve(t, &tcpstore.Protocol{}, &store.Server{Access: []store.Access{{Protocol: "torch", Prefix: "p/"}}})
	require.NoError(t, s.Set(s.ctx, "p/a", []byte("1"), nil))
	c := s.client(t)
	require.EqualValues(t, tcpwire.StopWaiting, c.call(wait("/a")).N)
	require.Equal(t, "1", string(c.call(get("/a")).Value))
	c.send(set("/a", "2"))
	c.closed()
	s.Says(t, "no right to write")
	_, err := store.Dial(s.ctx, s.addr, nil)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "other protocols only")
}

func TestAccessForAProtocol(t *testing.T) {
	for says, access := range map[string][]store.Access{
		`does not speak "tensorflow": it speaks "torch"`: {{Protocol: "tensorflow"}},
		"there is another prefix":                        {{Protocol: "torch", Prefix: "a"}, {Protocol: "torch", Prefix: "b"}},
		"a protocol, and a secret":                       {{Protocol: "torch", Secret: secret}},
	} {
		srv := &store.Server{Access: access, Protocol: &tcpstore.Protocol{}}
		err := srv.Check(nil)
		require.ErrorIs(t, err, store.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
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
