package store_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestTooManyConnections(t *testing.T) { // not parallel: it counts goroutines
	f := newTLSFiles(t)
	const limit = "the limit is 2 connections"
	for name, tc := range map[string]struct {
		server *store.Server
		secret []byte
		files  *store.TLSFiles
		says   string
	}{
		"plain":       {&store.Server{Limits: store.ServerLimits{Conns: 2}}, nil, nil, limit},
		"TLS":         {&store.Server{Limits: store.ServerLimits{Conns: 2}, TLS: serverTLS(t, f.server())}, nil, f.anonymous(), limit},
		"secret":      {&store.Server{Limits: store.ServerLimits{Conns: 2}, Access: []store.Access{all("s")}}, secretOf("s"), nil, limit},
		"one address": {&store.Server{Limits: store.ServerLimits{PerAddr: 2}}, nil, nil, limit + " from one address"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, tc.server, tcp)
			o := s.knowing(tc.secret, tc.files)
			a, b := s.as(t, o), s.as(t, o)
			before := runtime.NumGoroutine()
			var refused []net.Conn
			for range 200 { // each refusal runs in a goroutine for a second at most
				refused = append(refused, s.raw(t))
			}
			for _, c := range refused {
				require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
				_, err := io.Copy(io.Discard, c)
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it is not refused")
			}
			require.Less(t, runtime.NumGoroutine()-before, 100)
			works(t, a)
			testcluster.Eventually(t, testTimeout, func() bool {
				o.Wait = true
				_, err := store.Dial(bounded(t), "127.0.0.1:1", o)
				return strings.Contains(err.Error(), "store full: "+tc.says)
			}, "a waiting call is resumed again")
			require.Contains(t, s.String(), `reason="`+tc.says+`"`)
			elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}} // some systems have no such address
			if c, err := elsewhere.Dial("tcp", s.addr); err == nil && s.Limits.PerAddr > 0 {
				send(t, c, greeting())
				require.Equal(t, wire.CodeOK, receive(t, c).Code)
				require.NoError(t, c.Close())
			}
			works(t, b)
			require.NoError(t, b.Close())
			s.admits(t, o)
		})
	}
}

// TestUnfinishedHandshakesBlockNoPeer checks that peers that begin a handshake and never finish it
// do not keep others out: the server closes the oldest one.
func TestUnfinishedHandshakesBlockNoPeer(t *testing.T) {
	t.Parallel()
	f := newTLSFiles(t)
	for name, tc := range map[string]struct {
		limits store.ServerLimits
		tls    bool
	}{
		"plain": {store.ServerLimits{Handshakes: 4, Handshake: 3 * time.Second / 2}, false},
		"TLS":   {store.ServerLimits{Handshakes: 4, Handshake: 3 * time.Second / 2}, true},
		// Case connections has as many connections as the limit permits.
		"connections": {store.ServerLimits{Conns: 4, Handshake: 3 * time.Second / 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := &store.Server{Limits: tc.limits}
			var files *store.TLSFiles
			if tc.tls {
				srv.TLS, files = serverTLS(t, f.server()), f.anonymous()
			}
			s := serve(t, srv, tcp)
			slow := make([]net.Conn, 4)
			for i := range slow {
				slow[i] = s.raw(t)
				send(t, slow[i], []byte{wire.Preface[0]})
			}
			began := time.Now()
			c := s.as(t, s.knowing(nil, files))
			works(t, c)
			require.Less(t, time.Since(began), tc.limits.Handshake, "before their time was over")
			require.Contains(t, s.String(), "handshake dropped")
			require.Equal(t, 1, strings.Count(s.String(), "handshake dropped"))
			closed(t, slow[0])
			require.NoError(t, slow[1].SetReadDeadline(time.Now().Add(time.Millisecond)))
			_, err := slow[1].Read(make([]byte, 1))
			require.ErrorContains(t, err, "timeout", "the others have their time")
			for _, c := range slow[1:] {
				require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
				closed(t, c)
			}
			s.Says(t, "handshake: ")
			works(t, s.as(t, s.knowing(nil, files)))
		})
	}
}

func TestABurstOfHandshakesGetsThrough(t *testing.T) {
	f := newTLSFiles(t)
	s := serve(t, &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{all("s")}, Limits: store.ServerLimits{Handshakes: 2, Handshake: testTimeout}}, tcp)
	files := f.client()
	var burst sync.WaitGroup
	for range 100 {
		burst.Go(func() { works(t, s.as(t, s.knowing(secretOf("s"), files))) })
	}
	burst.Wait()
	require.NotContains(t, s.String(), "handshake dropped")
}

// TestHalfAHandshakeEnds checks that a peer that stops at any point of the handshake is disconnected when
// the time for it has passed.
func TestHalfAHandshakeEnds(t *testing.T) {
	sends := func(b []byte) func(t *testing.T, c net.Conn) net.Conn {
		return func(t *testing.T, c net.Conn) net.Conn {
			send(t, c, b)
			return c
		}
	}
	ends := func(t *testing.T, srv *store.Server, w wires, begin func(t *testing.T, c net.Conn) net.Conn, says string) {
		srv.Limits.Handshake = 100 * time.Millisecond
		s := serve(t, srv, w)
		closed(t, begin(t, s.raw(t)))
		s.Says(t, says)
	}
	for name, tc := range map[string]struct {
		tls    bool
		access []store.Access
		begin  func(t *testing.T, c net.Conn) net.Conn
		says   string
	}{
		"a byte":           {false, nil, sends(greeting()[:1]), "err=\"handshake: "},
		"the preface":      {false, nil, sends([]byte(wire.Preface)), "err=\"handshake: "},
		"half a hello":     {false, nil, sends(greeting()[:len(wire.Preface)+10]), "err=\"handshake: "},
		"half a TLS hello": {true, nil, sends([]byte{0x16, 3, 1, 2, 0}), "TLS handshake: "},
		"TLS and no hello": {true, nil, func(t *testing.T, c net.Conn) net.Conn {
			shaken := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
			require.NoError(t, shaken.Handshake())
			return shaken
		}, "err=\"handshake: "},
		"no proof": {false, []store.Access{all("s")}, func(t *testing.T, c net.Conn) net.Conn {
			send(t, c, wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello, Token: handshake.NewNonce()}))
			require.Equal(t, wire.OpProof, receive(t, c).Op)
			return c
		}, "err=\"handshake: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in real time a slow machine does not come as far as the case says
				srv := &store.Server{Access: tc.access}
				if tc.tls {
					srv.TLS = serverTLS(t, newTLSFiles(t).server())
				}
				ends(t, srv, pipes, tc.begin, tc.says)
			})
		})
	}
	t.Run("over TCP", func(t *testing.T) { ends(t, new(store.Server), tcp, sends(greeting()[:1]), "err=\"handshake: ") })
}

// TestDeleteManyKeys checks that Delete takes more keys, and more bytes of keys, than a request may have,
// and that Wait does not.
func TestDeleteManyKeys(t *testing.T) {
	for name, format := range map[string]string{"many": "%d", "long": "%08000d"} {
		t.Run(name, func(t *testing.T) {
			s, ctx := store.Prefix(store.New(new(store.Memory)), strings.Repeat("p", 100)), bounded(t)
			defer s.Close()
			keys := make([]string, wire.MaxKeys+1)
			for i := range keys {
				keys[i] = fmt.Sprintf(format, i)
			}
			require.NoError(t, s.Set(ctx, keys[0], nil, nil))
			require.NoError(t, s.Set(ctx, keys[len(keys)-1], nil, nil))
			n, err := s.Delete(ctx, keys...)
			require.NoError(t, err)
			require.Equal(t, 2, n)
			_, err = s.Wait(ctx, keys...)
			require.ErrorIs(t, err, store.ErrTooLarge)
		})
	}
}
