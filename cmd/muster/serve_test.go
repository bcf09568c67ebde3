package main_test

import (
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/wire"
)

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	taken := strings.TrimPrefix(url, "muster://")
	for args, want := range map[string]struct {
		code   int
		stderr string
	}{
		"--listen " + taken:         {1, "address already in use: set --listen to another port, or to 127.0.0.1:0 for a free one"},
		"--listen 0.0.0.0:0":        {1, "--insecure"},
		"--listen nobody.invalid:0": {1, "cannot listen"},
		"--listen nonsense":         {2, "host:port, as 127.0.0.1:7070"},
		"--http 8080":               {2, "--http 8080: it is not host:port, as 127.0.0.1:8080"},
		"--listen 127.0.0.1:99999":  {2, "65535"},
		"--log-level loud":          {2, "debug, info, warn"},
		"--max-keys 0":              {2, "--max-keys must be positive"},
		"--max-bytes 1TB":           {2, "64KiB"},
		"--handshake-timeout -1s":   {2, "--handshake-timeout must be positive"},
		"--drain -1s":               {2, "--drain"},
		"--no-such-flag":            {2, "unknown flag: --no-such-flag"},
		"127.0.0.1:7070":            {2, "unexpected argument"},
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			run(t, append([]string{"serve"}, strings.Fields(args)...)...).wants(t, want.code, "", want.stderr)
		})
	}
}

func TestServeBeyondLoopbackByName(t *testing.T) {
	t.Parallel()
	p := start(t, "serve", "--listen", "0.0.0.0:0", "--insecure")
	p.line(t, "muster://")
	p.signal(t, syscall.SIGINT)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "stopped") {
		t.Errorf("%+v", r)
	}
}

func TestServeLimits(t *testing.T) {
	t.Parallel()
	_, url := serve(t, "--max-keys", "1", "--max-bytes", "64KiB")
	steps(t, url, []step{
		{args: "set a 1"},
		{args: "set b 1", code: 1, stderr: "full"},
		{args: "set a " + strings.Repeat("x", 65<<10), code: 1, stderr: "full"},
	})
}

// holdOn starts a client that does not disconnect when the server stops.
func holdOn(t *testing.T, url string) {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "muster://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello})); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, wire.HeaderLen)); err != nil {
		t.Fatal(err)
	}
}

func TestServeDrains(t *testing.T) {
	t.Parallel()
	p, url := serve(t, "--drain", "50ms")
	holdOn(t, url)
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "stopped with clients connected") {
		t.Errorf("%+v", r)
	}
}

func TestServeUntilEOF(t *testing.T) {
	t.Parallel()
	in, end := io.Pipe()
	p := startIn(t, in, nil, "serve", "--listen", "127.0.0.1:0", "--until-eof", "--drain", "50ms")
	holdOn(t, p.line(t, "muster://"))
	require.NoError(t, end.Close())
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "end of standard input") {
		t.Errorf("%+v", r)
	}
}

func TestServeSecondSignalStopsAtOnce(t *testing.T) {
	t.Parallel()
	p, url := serve(t, "--drain", "1h")
	holdOn(t, url)
	p.signal(t, syscall.SIGTERM)
	p.complaint(t, "msg=stopping")
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "stopped with clients connected") {
		t.Errorf("%+v", r)
	}
}
