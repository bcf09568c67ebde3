package main_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
	p := startIn(t, []string{"NOTIFY_SOCKET=" + at}, "serve", "--listen", "127.0.0.1:0")
	receives("READY=1")
	p.signal(t, syscall.SIGTERM)
	receives("STOPPING=1")
	if r := p.wait(t); r.code != 0 {
		t.Errorf("%+v", r)
	}
}
