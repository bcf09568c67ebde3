package main_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// relay starts a relay of a store, and returns its address.
func relay(t *testing.T, url string) string {
	t.Helper()
	return start(t, "relay", "--listen", "127.0.0.1:0", "--store", url).line(t, "muster://127.0.0.1:")
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
	run(t, "add", "n", "7", "--store", strings.Replace(at, "muster://", "tcp://", 1)).wants(t, 0, "7\n", "")
	run(t, "get", "job/1/n", "--store", url, "--secret-file", d.path("secret")).wants(t, 0, "7\n", "")
	run(t, "get", "job/1/n", "--store", at).wants(t, 1, "", "access denied")
	require.NoError(t, parent.Close())
	require.Contains(t, p.wait(t).stderr, "stopped")
}
