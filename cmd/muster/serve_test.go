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
