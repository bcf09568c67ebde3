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
	steps(t, at, []step{{args: "set a 1"}, {args: "add n 2", stdout: "2\n"}})
	steps(t, url, []step{{args: "get a", stdout: "1\n"}})
	run(t, "relay", "--store", at).wants(t, 1, "", "the address is that of a relay")
	_, again := relay(t, "--store", url)
	steps(t, again+","+strings.TrimPrefix(url, "muster://"), []step{{args: "get n", stdout: "2\n"}})
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

// TestRelayWithSecrets checks that the credentials of the relay for the store and those that it
// requires of its clients are independent, and that clients have only the rights that both grant.
func TestRelayWithSecrets(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write(t, "host", "0000111122223333\n")
	d.write(t, "access.json", `[{"secret_file": "secret", "prefix": "job/", "write": true}]`)
	d.write(t, "viewers.json", `[{"secret_file": "host", "prefix": "job/a/"}, {"secret_file": "other", "write": true}]`)
	_, url := serve(t, append(d.serverFlags(), "--access", d.path("access.json"))...)
	ca := "?ca=" + d.path("tls/ca.pem")
	_, at := relay(t, append(d.serverFlags(), "--store", url+ca+"&secret-file="+d.path("secret"), "--access", d.path("viewers.json"))...)
	steps(t, at, []step{{args: "get job/a/x", code: 1, stderr: "this server requires TLS"}})
	at += ca
	steps(t, at+"&secret-file="+d.path("other"), []step{
		{args: "set job/a/x 1"},
		{args: "set else/x 1", code: 1, stderr: `may write below "job/"`},
	})
	steps(t, at+"&secret-file="+d.path("host"), []step{
		{args: "get job/a/x", stdout: "1\n"},
		{args: "set job/a/x 2", code: 1, stderr: `may read below "job/a/"`},
		{args: "get job/b", code: 1, stderr: `no right to read "job/b"`},
	})
	steps(t, at+"&secret-file="+d.path("secret"), []step{{args: "get job/a/x", code: 1, stderr: "wrong secret"}})
	steps(t, at, []step{{args: "get job/a/x", code: 1, stderr: "this store requires a secret"}})
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
