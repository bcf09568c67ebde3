package main_test

import (
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// relay starts a relay, and returns its process and address.
func relay(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"relay", "--listen", "127.0.0.1:0"}, args...)...)
	return p, p.line(t, "muster://127.0.0.1:")
}

func TestRelay(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	p, at := relay(t, "--store", url)
	steps(t, at, []step{{args: "add n 2", stdout: "2\n"}})
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "stopped") {
		t.Errorf("%+v", r)
	}
	// by the other address
	steps(t, at+","+strings.TrimPrefix(url, "muster://"), []step{{args: "get n", stdout: "2\n"}})
}

// TestRelayWithoutAStore checks that the error of a relay whose store has gone says that the store
// is missing.
func TestRelayWithoutAStore(t *testing.T) {
	t.Parallel()
	p, url := serve(t)
	_, at := relay(t, "--store", url)
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	run(t, "get", "--store", at, "a").wants(t, 5, "", "no store behind "+strings.TrimPrefix(at, "muster://")+": the relay cannot reach the store at "+strings.TrimPrefix(url, "muster://"))
}

// TestRelayOfAJob checks that a relay with --torch-prefix serves one prefix to PyTorch, and nothing
// to other clients; that it takes its credentials from the environment; and that it ends with its
// parent.
func TestRelayOfAJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	_, url := serve(t, "--secret-file", d.path("secret"))
	stdin, parent := io.Pipe()
	p := startIn(t, stdin, []string{"MUSTER_SECRET_FILE=" + d.path("secret")}, "relay", "--listen", "127.0.0.1:0", "--store", url, "--torch-prefix", "job/1/", "--until-eof")
	at := p.line(t, "muster://127.0.0.1:")
	assert.Equal(t, "\x07\x00\x00\x00\x00\x00\x00\x00", asTorch(t, at))
	steps(t, url+"?secret-file="+d.path("secret"), []step{{args: "get job/1/n", stdout: "7\n"}})
	steps(t, at, []step{{args: "get job/1/n", code: 1, stderr: "access denied"}})
	require.NoError(t, parent.Close())
	require.Contains(t, p.wait(t).stderr, "stopped")
}
