package main_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func TestValuesFromStandardInput(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	env := []string{"MUSTER_STORE=" + url}
	const value = "two\nlines \xff\x00"
	runIn(t, strings.NewReader(value), env, "set", "bin", "-").wants(t, 0, "", "")
	run(t, "get", "bin", "--raw", "--store", url).wants(t, 0, value, "")
	run(t, "keys", "--long", "--store", url).wants(t, 0, "       REV        TTL      BYTES  KEY = VALUE\n         2          -         12  bin = \"two\\nlines \\xff\\x00\"\n", "")
	var entry struct {
		Bytes []byte `json:"value_base64"`
	}
	r := run(t, "keys", "--json", "--store", url)
	if err := json.Unmarshal([]byte(r.stdout), &entry); err != nil || string(entry.Bytes) != value {
		t.Errorf("%s gave %q, %v", r.stdout, entry.Bytes, err)
	}
	runIn(t, bytes.NewReader(make([]byte, 16<<20+1)), env, "set", "big", "-").wants(t, 1, "", "over 16 MiB")
	runIn(t, strings.NewReader(""), env, "set", "empty", "-").wants(t, 0, "", "")
	run(t, "get", "empty", "--store", url).wants(t, 0, "\n", "")
}

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
			runIn(t, nil, []string{"MUSTER_STORE=" + c.url}, "set", "k", "v").wants(t, c.code, "", c.stderr)
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

func TestStoreGoesAway(t *testing.T) {
	t.Parallel()
	p, url := serve(t, "--log-level", "debug")
	w := start(t, "watch", "--from", "1", "--store", url)
	run(t, "set", "k", "v", "--store", url).wants(t, 0, "", "")
	w.line(t, "k = v") // so the client is connected
	p.signal(t, syscall.SIGTERM)
	w.wait(t).wants(t, 5, "", "went away")
	if r := p.wait(t); r.code != 0 {
		t.Errorf("serve ended with %d: %s", r.code, r.stderr)
	}
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
