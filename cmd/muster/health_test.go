package main_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answer returns the answer at a URL.
func answer(t *testing.T, url string) (status int, text string) {
	t.Helper()
	rep, err := (&http.Client{Timeout: limit}).Get(url)
	require.NoError(t, err)
	defer rep.Body.Close()
	body, err := io.ReadAll(rep.Body)
	require.NoError(t, err)
	return rep.StatusCode, strings.TrimSpace(string(body))
}

func checkGet(t *testing.T, url string, status int, text string) {
	t.Helper()
	if got, said := answer(t, url); got != status || !strings.Contains(said, text) {
		t.Errorf("%s is %d %q, want %d %q", url, got, said, status, text)
	}
}

// TestServeHealth checks what a server reports while it stops; a second signal stops it at once.
func TestServeHealth(t *testing.T) {
	t.Parallel()
	p := start(t, "serve", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--drain", "1h")
	_, base, _ := strings.Cut(p.complaint(t, `msg="serving health checks"`), "health=")
	base = strings.TrimSuffix(base, "/healthz")
	url := p.line(t, "muster://")
	checkGet(t, base+"/healthz", 200, "ok")
	holdOn(t, url)
	p.signal(t, syscall.SIGTERM)
	p.complaint(t, "msg=stopping")
	checkGet(t, base+"/healthz", 200, "ok")
	checkGet(t, base+"/readyz", 503, "ends")
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestServeNotifiesSystemd(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "muster") // t.TempDir() may be too long for a socket
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	at := filepath.Join(dir, "notify")
	l, err := net.ListenPacket("unixgram", at)
	require.NoError(t, err)
	defer l.Close()
	receives := func(want string) {
		t.Helper()
		b := make([]byte, 100)
		require.NoError(t, l.SetReadDeadline(time.Now().Add(limit)))
		n, _, err := l.ReadFrom(b)
		if err != nil || string(b[:n]) != want {
			t.Errorf("systemd receives %q, %v, want %q", b[:n], err, want)
		}
	}
	p := startIn(t, nil, []string{"NOTIFY_SOCKET=" + at}, "serve", "--listen", "127.0.0.1:0")
	receives("READY=1")
	p.signal(t, syscall.SIGTERM)
	receives("STOPPING=1")
	if r := p.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
