package main_test

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func TestWrongStores(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    string
		code   int
		stderr string
	}{
		"silence":         {"muster://" + mute(t), 5, "no answer from "},
		"another service": {"muster://" + otherService(t), 5, "not a muster store"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, "get", "k", "--store", c.url).wants(t, c.code, "", c.stderr)
			runIn(t, []string{"MUSTER_STORE=" + c.url}, "set", "k", "v").wants(t, c.code, "", c.stderr)
		})
	}
}

// mute starts a server that accepts connections and sends nothing.
func mute(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// otherService starts a service with another protocol.
func otherService(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// TestHiddenKeys checks that the keys of servers and relays are listed only when they are asked for.
func TestHiddenKeys(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	s, err := store.Open(t.Context(), url)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Set(t.Context(), "\x00own", []byte("x"), nil))
	require.NoError(t, s.Set(t.Context(), "k", []byte("x"), nil))
	run(t, "keys", "--store", url).wants(t, 0, "k\n", "")
	run(t, "keys", "--all", "--store", url).wants(t, 0, "\"\\x00own\"\nk\n", "")
}
