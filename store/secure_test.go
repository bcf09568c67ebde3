package store_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// all returns full access for peers that know the secret of a letter.
func all(letter string) store.Access { return store.Access{Secret: secretOf(letter), Write: true} }

func serverTLS(t *testing.T, files *store.TLSFiles) *tls.Config {
	t.Helper()
	c, err := files.Server()
	require.NoError(t, err)
	return c
}

// knowing returns options for dialing s with these credentials.
func (s *service) knowing(secret []byte, files *store.TLSFiles) *store.DialOptions {
	o := &store.DialOptions{Dial: s.dial, Secret: secret}
	if files != nil {
		o.TLS = files.Client
	}
	return o
}

// admits waits until s admits a client with these options.
func (s *service) admits(t *testing.T, o *store.DialOptions) {
	t.Helper()
	testcluster.Eventually(t, testTimeout, func() bool {
		c, err := store.Dial(bounded(t), "127.0.0.1:1", o)
		if err == nil {
			works(t, c)
			_ = c.Close()
		}
		return err == nil
	}, "a client is admitted")
}

// TestWaysIn checks which clients are admitted, and what the others, and the log, are told.
func TestWaysIn(t *testing.T) {
	f, other := newTLSFiles(t), newTLSFiles(t)
	elsewhere, unsigned, untrusting := f.client(), f.client(), f.anonymous()
	elsewhere.ServerName = "elsewhere"
	unsigned.Cert, unsigned.Key = other.path("trainer"), other.path("trainer-key")
	untrusting.CA = other.path("ca")
	plain, encrypted, mutual := &store.Server{}, &store.Server{TLS: serverTLS(t, f.server())}, &store.Server{TLS: serverTLS(t, f.requiring())}
	secret := &store.Server{Access: []store.Access{all("s")}}
	both := &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{all("s"), {Name: "other"}}}
	byName := &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{{Name: "other"}}}
	either := &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{all("x"), all("s"), {Name: "trainer", Write: true}}}
	for name, way := range map[string]struct {
		server *store.Server
		reason wire.Reason
		secret []byte
		files  *store.TLSFiles
		says   string // error of the client; "": it is admitted
		logs   string // log of the server
	}{
		"TLS":                   {server: encrypted, files: f.anonymous()},
		"certificates":          {server: mutual, files: f.client()},
		"secret":                {server: secret, secret: secretOf("s")},
		"TLS and secret":        {server: both, secret: secretOf("s"), files: f.anonymous()},
		"certificate by name":   {server: either, files: f.client()},
		"secret or certificate": {server: either, secret: secretOf("s"), files: f.anonymous()},
		"secret, not the name":  {server: both, secret: secretOf("s"), files: f.client()},

		"no secret":            {secret, wire.ReasonNoSecret, nil, nil, "this store requires a secret, and none was given", "this store requires a secret"},
		"wrong secret":         {secret, wire.ReasonSecret, secretOf("x"), nil, "wrong secret", "denied: wrong secret"},
		"wrong secret, TLS":    {both, wire.ReasonSecret, secretOf("x"), f.client(), "wrong secret", "wrong secret"},
		"no rights":            {both, wire.ReasonCertificate, nil, f.client(), `the certificate of "trainer" has no rights here, and no secret was given`, "has no rights here"},
		"no secret, TLS":       {both, wire.ReasonNoSecret, nil, f.anonymous(), "this store requires a secret", "this store requires a secret"},
		"no name":              {byName, wire.ReasonCertificate, nil, f.client(), `the certificate of "trainer" has no rights here`, "has no rights here"},
		"no certificate here":  {byName, wire.ReasonNoCertificate, nil, f.anonymous(), "this store requires a client certificate", "this store requires a client certificate"},
		"no certificate":       {mutual, wire.ReasonNoCertificate, nil, f.anonymous(), "TLS refused: tls: certificate required", "TLS handshake: tls: client didn't provide a certificate"},
		"unknown certificate":  {mutual, wire.ReasonCertificate, nil, unsigned, "TLS refused: tls: unknown certificate authority", "unknown authority"},
		"untrusted":            {mutual, wire.ReasonServerCertificate, nil, untrusting, "its certificate is not trusted: x509: certificate signed by unknown authority", "bad certificate"},
		"another host":         {mutual, wire.ReasonServerName, nil, elsewhere, "its certificate is not trusted: x509: certificate is valid for node7, not elsewhere", "bad certificate"},
		"secret for nothing":   {plain, wire.ReasonServerSecret, secretOf("s"), nil, "the store did not prove that it knows the secret", ""},
		"secret, not TLS":      {encrypted, wire.ReasonServerSecret, secretOf("s"), f.anonymous(), "the store did not prove that it knows the secret", ""},
		"a secret for a name":  {byName, wire.ReasonNoCertificate, secretOf("s"), f.anonymous(), "this store requires a client certificate", ""},
		"plain where TLS is":   {encrypted, wire.ReasonNoTLS, nil, nil, "this server requires TLS", "this server speaks TLS only, the peer does not"},
		"secret where TLS is":  {both, wire.ReasonNoTLS, secretOf("s"), nil, "this server requires TLS", "this server speaks TLS only, the peer does not"},
		"TLS where plain is":   {plain, wire.ReasonTLS, nil, f.anonymous(), "this server does not use TLS", "the peer speaks TLS, this server does not"},
		"TLS where secrets is": {secret, wire.ReasonTLS, secretOf("s"), f.anonymous(), "this server does not use TLS", "the peer speaks TLS, this server does not"},
	} {
		for w, wires := range map[string]wires{"tcp": tcp, "pipes": pipes} {
			if w == "pipes" && way.files != nil && way.says != "" {
				continue // a closed pipe loses bytes that were not read
			}
			t.Run(name+"/"+w, func(t *testing.T) {
				s := serve(t, &store.Server{TLS: way.server.TLS, Access: way.server.Access}, wires)
				o := s.knowing(way.secret, way.files)
				o.Wait = true
				c, err := store.Dial(bounded(t), "127.0.0.1:1", o)
				if way.says == "" {
					require.NoError(t, err)
					require.NoError(t, setAndGet(bounded(t), c, "large", strings.Repeat("x", large)))
					require.NoError(t, c.Close())
					require.NotContains(t, s.String(), "level=WARN")
					return
				}
				require.ErrorIs(t, err, store.ErrDenied)
				require.NotErrorIs(t, err, store.ErrUnavailable)
				reported, _ := errors.AsType[*store.Error](err)
				require.Equal(t, way.reason, reported.Reason)
				require.ErrorContains(t, err, `store: dial "127.0.0.1:1": denied: `+way.says)
				s.Says(t, way.logs)
			})
		}
	}
}

// TestNoWayBackIn checks that a client whose access was withdrawn gets that error at its next dial,
// and does not dial again.
func TestNoWayBackIn(t *testing.T) {
	f, other := newTLSFiles(t), newTLSFiles(t)
	for name, tc := range map[string]struct {
		first, then *store.Server
		says        string
	}{
		"secret": {&store.Server{Access: []store.Access{all("s")}}, &store.Server{Access: []store.Access{all("x")}}, "wrong secret"},
		"TLS": {
			&store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{all("s")}},
			&store.Server{TLS: serverTLS(t, other.server()), Access: []store.Access{all("s")}}, "its certificate is not trusted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, then := serve(t, tc.first, tcp), serve(t, tc.then, tcp)
			var dials atomic.Int32
			o := first.knowing(secretOf("s"), nil)
			if tc.first.TLS != nil {
				o.TLS = f.anonymous().Client
			}
			o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					return first.dial(ctx, network, addr)
				}
				return then.dial(ctx, network, addr)
			}
			c := first.as(t, o)
			works(t, c)
			breakConn(c.Engine())
			_, err := c.Wait(bounded(t), "never")
			require.ErrorIs(t, err, store.ErrDenied)
			require.ErrorContains(t, err, tc.says)
			require.LessOrEqual(t, dials.Load(), int32(3), "it does not go on")
		})
	}
}

// tapped is a connection with functions that see, and may change, the bytes that it transfers.
type tapped struct {
	net.Conn
	read, written func(b []byte)
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read(b[:n])
	return n, err
}

func (c *tapped) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	c.written(b)
	return c.Conn.Write(b)
}

func TestASecretIsNeverSent(t *testing.T) {
	s := serve(t, &store.Server{Access: []store.Access{all("s")}}, tcp)
	var mu sync.Mutex
	var seen [2]bytes.Buffer
	for i := range seen {
		o := s.knowing(secretOf("s"), nil)
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.dial(ctx, network, addr)
			keep := func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				seen[i].Write(b)
			}
			return &tapped{c, keep, keep}, err
		}
		works(t, s.as(t, o))
	}
	mu.Lock()
	defer mu.Unlock()
	require.Greater(t, seen[0].Len(), 200)
	require.NotContains(t, seen[0].String(), string(secretOf("s")[:4]))
	require.NotEqual(t, seen[0].Bytes()[:100], seen[1].Bytes()[:100], "no two handshakes are alike")
	require.NotContains(t, s.String(), string(secretOf("s")[:4]))
}

// entered returns a bare connection that has proved a secret, and the reply to its hello.
func (s *service) entered(t *testing.T, secret []byte, hello wire.Request) (net.Conn, wire.Reply) {
	t.Helper()
	hello.Key = "a test"
	welcome, err := handshake.Open(bounded(t), s.raw(t), &handshake.Offer{Secret: secret, Hello: hello})
	require.NoError(t, err)
	return welcome.Conn, welcome.Reply
}

func TestNothingIsCarriedOutBeforeTheProof(t *testing.T) {
	t.Parallel()
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			s := serve(t, &store.Server{Engine: e.engine(t), Access: []store.Access{all("s")}}, e.wires)
			set := wire.AppendRequest(nil, &wire.Request{Op: wire.OpSet, ID: 1, Key: "in", Value: []byte{}})
			large := wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Value: make([]byte, 1<<20), Token: handshake.NewNonce()})
			for want, b := range map[string][]byte{
				"this store requires a secret": append(greeting(), set...),
				"set before the proof":         append(wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Token: handshake.NewNonce()}), set...),
				"wrong secret":                 append(wire.AppendRequest(wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Token: make([]byte, 31)}), &wire.Request{Op: wire.OpProof, Value: make([]byte, 32)}), set...),
				"proof before hello":           wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpProof}),
				"hello of 10486":               large,
			} {
				c := s.raw(t)
				go func() { _, _ = c.Write(b) }()
				closed(t, c)
				s.Says(t, want)
			}
			_, err := s.as(t, s.knowing(secretOf("s"), nil)).Get(bounded(t), "in")
			require.ErrorIs(t, err, store.ErrNotFound)
		})
	}
}

// parts are the rights of peers that know the secrets p, q, and r.
var parts = []store.Access{
	{Secret: secretOf("p"), Prefix: "jobs/a/", Write: true},
	{Secret: secretOf("p"), Prefix: "cfg/"},
	{Secret: secretOf("q"), Prefix: "jobs/"},
	{Secret: secretOf("r"), Write: true},
}

func TestARefusalUsesItsNumberAndComesAgain(t *testing.T) {
	for _, e := range slices.Concat(engines, durables) {
		t.Run(e.name, func(t *testing.T) {
			s := serve(t, &store.Server{Engine: e.engine(t), Access: parts, Limits: store.ServerLimits{ReconnectTimeout: time.Hour}}, e.wires)
			set := wire.Request{Op: wire.OpSet, ID: 1, Number: 1, Key: "k", Value: []byte{}}
			add := wire.Request{Op: wire.OpAdd, ID: 2, Number: 2, Key: "jobs/a/n", Add: 1}
			c, welcome := s.entered(t, secretOf("p"), wire.Request{})
			for range 2 {
				rep := ask(t, c, set)
				require.Equal(t, wire.CodeDenied, rep.Code)
				require.Contains(t, rep.Detail, `no right to write "k"`)
			}
			require.EqualValues(t, 1, ask(t, c, add).N)
			require.NoError(t, c.Close())

			again := wire.Request{Resume: uint64(welcome.N), Incarnation: welcome.Rev, Value: welcome.Value}
			c, back := s.entered(t, secretOf("p"), again)
			require.Equal(t, welcome.N, back.N, "it is the same session")
			require.Equal(t, wire.CodeDenied, ask(t, c, set).Code)
			require.EqualValues(t, 1, ask(t, c, add).N, "it took effect once")
			add.ID, add.Number, add.Acked = 3, 3, 2
			require.EqualValues(t, 2, ask(t, c, add).N)

			// A peer with the session's token has only the rights of its own secret. A recorded
			// reply does not change.
			c, back = s.entered(t, secretOf("q"), again)
			require.Equal(t, welcome.N, back.N)
			set.ID, set.Number, set.Key = 4, 4, "jobs/a/x"
			require.Equal(t, wire.CodeDenied, ask(t, c, set).Code)
			require.Equal(t, wire.CodeOK, ask(t, c, wire.Request{Op: wire.OpGet, ID: 5, Key: "jobs/a/n"}).Code)
			require.Equal(t, wire.CodeStale, ask(t, c, wire.Request{Op: wire.OpSet, ID: 6, Number: 1, Key: "k"}).Code, "it has been acknowledged")
			require.Equal(t, wire.CodeInvalid, ask(t, c, wire.Request{Op: wire.OpSet, ID: 7, Number: 9, Key: "k"}).Code, "it is not the next")
		})
	}
}

func TestServeBeyondLoopback(t *testing.T) {
	f := newTLSFiles(t)
	noCA := f.server()
	noCA.CA = ""
	beyond, here := &net.TCPAddr{IP: net.IPv4zero, Port: 7070}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7070}
	for name, tc := range map[string]struct {
		*store.Server
		insecure bool   // allowed only with Insecure
		bad      string // error on any address; "": none
	}{
		"nothing":               {&store.Server{}, true, ""},
		"TLS":                   {&store.Server{TLS: serverTLS(t, noCA)}, true, ""},
		"TLS, certificates":     {&store.Server{TLS: serverTLS(t, f.server())}, true, ""},
		"required certificates": {&store.Server{TLS: serverTLS(t, f.requiring())}, false, ""},
		"secret":                {&store.Server{Access: []store.Access{all("s")}}, false, ""},
		"TLS and secret":        {&store.Server{TLS: serverTLS(t, noCA), Access: []store.Access{all("s")}}, false, ""},
		"TLS and names":         {&store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{{Name: "x"}}}, false, ""},
		"names without TLS":     {&store.Server{Access: []store.Access{all("s"), {Name: "x"}}}, false, `access "1": invalid request: it is for a client certificate, and the server asks for none`},
		"names without a CA":    {&store.Server{TLS: serverTLS(t, noCA), Access: []store.Access{{Name: "x"}}}, false, "the server asks for none"},
		"an empty secret":       {&store.Server{Access: []store.Access{{Secret: []byte{}}}}, false, "0 bytes are too few"},
		"a short secret":        {&store.Server{Access: []store.Access{{Secret: make([]byte, 15)}}}, false, `15 bytes are too few, it needs 16: "(umask`},
		"no other protocol":     {&store.Server{Access: []store.Access{{Protocol: "torch"}}}, false, `this server does not speak "torch": it speaks no other protocol`},
		"stacks for a protocol": {&store.Server{Access: []store.Access{{Protocol: "torch", Stacks: true}}}, false, "stacks for a protocol"},
		"secret and protocol":   {&store.Server{Access: []store.Access{{Protocol: "torch", Secret: secretOf("s")}}}, false, "a protocol, and a secret"},
		"neither":               {&store.Server{Access: []store.Access{all("s"), {Prefix: "x"}}}, false, `store: access "1": invalid request: neither a secret nor a name`},
		"both":                  {&store.Server{Access: []store.Access{{Secret: secretOf("s"), Name: "x"}}}, false, "a secret and a name"},
	} {
		for _, addr := range []net.Addr{beyond, here} {
			for _, insecure := range []bool{false, true} {
				tc.Insecure = insecure
				err := tc.Check(addr)
				switch {
				case tc.bad != "":
					require.ErrorIs(t, err, store.ErrInvalid, name)
					require.ErrorContains(t, err, tc.bad, name)
				case tc.insecure && addr == beyond && !insecure:
					require.ErrorIs(t, err, store.ErrInsecure, name)
				default:
					require.NoError(t, err, name)
				}
			}
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorIs(t, (&store.Server{Access: []store.Access{{}}}).Serve(l), store.ErrInvalid, "Serve checks too")

	s := serve(t, &store.Server{Engine: new(store.Memory), Access: []store.Access{all("s")}}, listening("0.0.0.0:0"))
	works(t, s.as(t, s.knowing(secretOf("s"), nil)))
}

// TestTLSThatIsNotWhatItSays checks that a server whose TLS configuration claims to require
// certificates, but does not, refuses peers without one.
func TestTLSThatIsNotWhatItSays(t *testing.T) {
	f := newTLSFiles(t)
	lax := serverTLS(t, f.server())
	lax.ClientAuth = tls.RequireAndVerifyClientCert
	s := serve(t, &store.Server{TLS: lax}, tcp)
	works(t, s.as(t, s.knowing(nil, f.client())))
	_, err := store.Dial(bounded(t), "127.0.0.1:1", s.knowing(nil, f.anonymous()))
	require.Error(t, err)
	s.Says(t, "no certificate of the peer has been verified")

	unverified := fixed(t, serverTLS(t, f.server()))
	unverified.ClientAuth = tls.RequireAnyClientCert
	s = serve(t, &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{{Name: "trainer", Write: true}}}, tcp)
	s.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return unverified, nil }
	_, err = store.Dial(bounded(t), "127.0.0.1:1", s.knowing(nil, f.client()))
	require.ErrorIs(t, err, store.ErrDenied, "a name that was not verified")

	old := fixed(t, serverTLS(t, f.server()))
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	s = serve(t, &store.Server{TLS: old}, tcp)
	o := s.knowing(nil, f.anonymous())
	o.TLS = func() (*tls.Config, error) {
		c, err := f.anonymous().Client()
		c.MinVersion = tls.VersionTLS12
		return c, err
	}
	_, err = store.Dial(bounded(t), "127.0.0.1:1", o)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "TLS 1.3 is the least")
}

func TestCertificatesChangeUnderARunningServer(t *testing.T) {
	f := newTLSFiles(t)
	s := serve(t, &store.Server{TLS: serverTLS(t, f.requiring())}, tcp)
	before := s.as(t, s.knowing(nil, f.client()))
	works(t, before)
	old, err := f.client().Client()
	require.NoError(t, err)
	f.renew(t)
	s.admits(t, s.knowing(nil, f.client())) // who trusts the new authority
	works(t, before)
	o := s.knowing(nil, nil)
	o.TLS = func() (*tls.Config, error) { return old, nil }
	_, err = store.Dial(bounded(t), "127.0.0.1:1", o)
	require.ErrorIs(t, err, store.ErrDenied, "who trusts the old one does not")
	require.NoError(t, store.ConnOf(before.Engine()).Close())
	testcluster.Eventually(t, testTimeout, func() bool { // a client also reloads its own files
		return before.Set(bounded(t), "k", nil, nil) == nil
	}, "who was there comes back")
}
