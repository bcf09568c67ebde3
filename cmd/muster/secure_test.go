package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// desk is a directory with secrets, and with certificates in tls.
type desk string

func newDesk(t *testing.T) desk {
	t.Helper()
	d := desk(t.TempDir())
	if r := run(t, "certs", d.path("tls"), "--name", "trainer,viewer"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	d.write(t, "secret", "0123456789abcdef\n")
	d.write(t, "other", "fedcba9876543210\n")
	return d
}

func (d desk) path(name string) string { return filepath.Join(string(d), name) }

func (d desk) write(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(d.path(name), []byte(text), 0o600))
}

func (d desk) serverFlags() []string {
	return []string{"--tls-cert", d.path("tls/server.pem"), "--tls-key", d.path("tls/server-key.pem"), "--tls-ca", d.path("tls/ca.pem")}
}

// client returns the variables of a client that has a certificate.
func (d desk) client(name string) []string {
	return []string{"MUSTER_TLS_CA=" + d.path("tls/ca.pem"), "MUSTER_TLS_CERT=" + d.path("tls/"+name+".pem"), "MUSTER_TLS_KEY=" + d.path("tls/"+name+"-key.pem")}
}

// tries runs commands with environment variables.
func tries(t *testing.T, env []string, all []step) {
	t.Helper()
	for _, s := range all {
		t.Log("muster " + s.args)
		runIn(t, nil, env, strings.Fields(s.args)...).wants(t, s.code, s.stdout, s.stderr)
	}
}

func TestServeWithCertificates(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p, at := serve(t, append(d.serverFlags(), "--require-client-cert")...)
	ca := "ca=" + d.path("tls/ca.pem")
	pair := "&cert=" + d.path("tls/viewer.pem") + "&key=" + d.path("tls/viewer-key.pem")
	tries(t, append(d.client("trainer"), "MUSTER_STORE="+at), []step{{args: "set k v"}, {args: "get k", stdout: "v\n"}})
	tries(t, []string{"MUSTER_STORE=" + at}, []step{
		{args: "get k --tls-ca " + d.path("tls/ca.pem") + " --tls-cert " + d.path("tls/viewer.pem") + " --tls-key " + d.path("tls/viewer-key.pem"), stdout: "v\n"},
		{args: "get k --store " + at + "?" + ca + pair, stdout: "v\n"},
		{args: "get k", code: 1, stderr: "access denied by the store at " + strings.TrimPrefix(at, "muster://") + ": this server requires TLS: set --tls-ca (MUSTER_TLS_CA)"},
		{args: "get k --tls-ca " + d.path("tls/ca.pem"), code: 1, stderr: "TLS refused: tls: certificate required: set --tls-cert and --tls-key (MUSTER_TLS_CERT, MUSTER_TLS_KEY)"},
		{args: "get k --store " + at + "?tls=true" + pair, code: 1, stderr: "its certificate is not trusted"},
		{args: "get k --store " + at + "?server-name=elsewhere&" + ca + pair, code: 1, stderr: "not elsewhere"},
		{args: "get k --tls-ca " + d.path("none"), code: 1, stderr: "no such file"},
		{args: "get k --tls-cert " + d.path("tls/viewer.pem"), code: 2, stderr: "--tls-cert (MUSTER_TLS_CERT) and --tls-key (MUSTER_TLS_KEY) go together"},
		{args: "get k --store " + at + "?cert", code: 1, stderr: "the parameter cert is empty"},
		{args: "get k --store muster://me:hidden@127.0.0.1:1", code: 2, stderr: "--store muster://me:xxxxx@127.0.0.1:1: there are no users"},
	})
	r := reportOf(t, runIn(t, nil, append(d.client("trainer"), "MUSTER_STORE="+at), "doctor", "--json"))
	assert.Contains(t, r.text("store", "ok"), "the store grants access")
	r = reportOf(t, run(t, "doctor", "--json", "--store", at))
	assert.Contains(t, r.text("store", "problem"), "the store denies access: this server requires TLS")
	runIn(t, nil, append(d.client("trainer"), "MUSTER_STORE="+at+"?tls=false"), "get", "k").wants(t, 1, "", "this server requires TLS")
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "didn't provide a certificate") {
		t.Errorf("%+v", r)
	}
}

func TestServeWithASecret(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := start(t, "serve", "--listen", "0.0.0.0:0", "--secret-file", d.path("secret"))
	_, port, _ := strings.Cut(strings.TrimPrefix(p.line(t, "muster://"), "muster://"), ":")
	at := "muster://127.0.0.1:" + port
	tries(t, []string{"MUSTER_STORE=" + at, "MUSTER_SECRET_FILE=" + d.path("secret")}, []step{
		{args: "set k v"},
		{args: "get k", stdout: "v\n"},
		{args: "get k --secret-file " + d.path("other"), code: 1, stderr: "wrong secret"},
		{args: "get k --store " + at + "?secret-file=" + d.path("other") + " --secret-file " + d.path("secret"), code: 1, stderr: "wrong secret"},
		{args: "get k --secret-file " + d.path("none"), code: 1, stderr: "no such file"},
	})
	run(t, "get", "k", "--store", at).wants(t, 1, "", "this store requires a secret, and none was given: set --secret-file (MUSTER_SECRET_FILE)")
	_, open := serve(t)
	run(t, "get", "k", "--store", open, "--secret-file", d.path("secret")).wants(t, 1, "", "did not prove that it knows the secret")
	p.signal(t, syscall.SIGTERM)
	if r := p.wait(t); r.code != 0 || !strings.Contains(r.stderr, "wrong secret") || strings.Contains(r.stderr, "0123456789") {
		t.Errorf("%+v", r)
	}
}

func TestServeAccess(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write(t, "access.json", `[{"name": "trainer", "prefix": "jobs/a/", "write": true}, {"name": "viewer", "prefix": "jobs/"},
		{"secret_file": "other", "prefix": "cfg/", "write": true}]`)
	_, at := serve(t, append(d.serverFlags(), "--access", d.path("access.json"), "--secret-file", d.path("secret"))...)
	env := func(more ...string) []string {
		return append(more, "MUSTER_STORE="+at, "MUSTER_TLS_CA="+d.path("tls/ca.pem"))
	}
	tries(t, env(d.client("trainer")...), []step{
		{args: "set jobs/a/k v"},
		{args: "set cfg/k v", code: 1, stderr: `no right to write "cfg/k": this peer may write below "jobs/a/"`},
		{args: "set k v --store " + at + "/jobs/a"},
	})
	tries(t, env(d.client("viewer")...), []step{
		{args: "keys jobs/", stdout: "jobs/a/k\n"},
		{args: "keys", code: 1, stderr: `no right to read below ""`},
		{args: "delete jobs/a/k", code: 1, stderr: `no right to write "jobs/a/k"`},
		{args: "set cfg/k v --secret-file " + d.path("other")},
	})
	tries(t, env("MUSTER_SECRET_FILE="+d.path("secret")), []step{{args: "keys", stdout: "cfg/k\njobs/a/k\n"}})
	tries(t, env(), []step{{args: "keys", code: 1, stderr: "this store requires a secret"}})
}

func TestServeRefusesWrongPapers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.write(t, "open", "0123456789abcdef")
	require.NoError(t, os.Chmod(d.path("open"), 0o644))
	for name, text := range map[string]string{
		"empty.json": "[]", "text.json": "trainer", "unknown.json": `[{"name":"x","rights":"all"}]`, "both.json": `[{"name":"x","secret_file":"secret"}]`,
		"more.json": `[{"name":"x"}] {}`, "missing.json": `[{"secret_file":"nowhere"}]`, "name.json": `[{"name":"x"}]`, "object.json": `{"name":"x"}`,
	} {
		d.write(t, name, text)
	}
	server := strings.Join(d.serverFlags(), " ")
	for args, want := range map[string]struct {
		code   int
		stderr string
	}{
		"--tls-cert x":                       {2, "--tls-cert and --tls-key go together"},
		"--tls-ca x":                         {2, "--tls-ca needs --tls-cert"},
		"--require-client-cert":              {2, "--require-client-cert needs --tls-ca"},
		"--tls-cert /none --tls-key /none":   {1, "/none"},
		"--secret-file /none":                {1, "--secret-file: "},
		"--secret-file DIR/open":             {1, "chmod 600"},
		"--access /none":                     {1, "--access /none: "},
		"--access DIR/empty.json":            {1, "no client would have access"},
		"--access DIR/text.json":             {1, "not a list of"},
		"--access DIR/object.json":           {1, "not a list of"},
		"--access DIR/unknown.json":          {1, `unknown field "rights"`},
		"--access DIR/both.json":             {1, "entry 1 needs a secret_file, a name or a protocol, one of them"},
		"--access DIR/more.json":             {1, "data after the list"},
		"--access DIR/missing.json":          {1, d.path("nowhere")},
		"--access DIR/name.json":             {1, "the server asks for none: set TLS"},
		"--listen 0.0.0.0:0 " + server:       {1, "refusing to serve beyond loopback"},
		"--listen 0.0.0.0:0 --secret-file x": {1, "--secret-file: "},
	} {
		t.Run(strings.ReplaceAll(args, string(d), "DIR"), func(t *testing.T) {
			t.Parallel()
			run(t, append([]string{"serve"}, strings.Fields(strings.ReplaceAll(args, "DIR", string(d)))...)...).wants(t, want.code, "", want.stderr)
		})
	}
}

func TestRunWithASecret(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	env := []string{"MUSTER_SECRET_FILE=" + d.path("secret"), "MUSTER_TLS_CA=" + d.path("none")}
	r := runIn(t, nil, append(env, role+"="+roleMuster), "run", "-n", "3", "--env", role+"="+roleRank, "--", self(t))
	if r.code != 0 || strings.Count(r.stdout, "[0 10 20] <nil> <nil>") != 3 {
		t.Errorf("%+v", r)
	}
	runIn(t, nil, []string{"MUSTER_SECRET_FILE=" + d.path("none")}, "run", "-n", "1", "--", "true").wants(t, 2, "", "MUSTER_SECRET_FILE: ")
	_, url := serve(t, "--secret-file", d.path("secret"))
	run(t, "run", "--nnodes", "2", "-n", "1", "--job", "j", "--store", url, "--", "true").wants(t, 1, "", "none was given: set MUSTER_SECRET_FILE\n") // run has no --secret-file
}

// TestLivenessTimeoutReachesTheRanks checks that the ranks use the timeout of the flag, or that of
// the variable if the flag is not set.
func TestLivenessTimeoutReachesTheRanks(t *testing.T) {
	t.Parallel()
	show := []string{"run", "-n", "1", "--no-prefix", "--", "sh", "-c", "echo =$MUSTER_LIVENESS_TIMEOUT="}
	env := []string{"MUSTER_LIVENESS_TIMEOUT=8s"}
	runIn(t, nil, env, show...).wants(t, 0, "=8s=\n", "")
	runIn(t, nil, env, append([]string{"run", "--liveness-timeout", "7s"}, show[1:]...)...).wants(t, 0, "=7s=\n", "")
	runIn(t, nil, []string{"MUSTER_LIVENESS_TIMEOUT=x"}, show...).wants(t, 2, "", "MUSTER_LIVENESS_TIMEOUT is x, which is not a duration")
	run(t, "run", "--liveness-timeout", "0s", "-n", "1", "--", "true").wants(t, 2, "", "--liveness-timeout must be positive")
}

func TestLimitFlags(t *testing.T) {
	t.Parallel()
	for flag, bad := range map[string][]string{
		"max-key": {"0", "9KiB", "x"}, "max-value": {"0", "17MiB"}, "max-bytes": {"0", "1TB", "-1"}, "max-in-flight": {"0", "x"}, "max-held": {"0", "x"}, "max-held-per-peer": {"0"}, "max-buffers": {"0", "-1"},
		"max-keys": {"0", "-1", "x"}, "max-conns": {"0", "-1"}, "max-conns-per-addr": {"0", "-1"}, "max-handshakes": {"0", "-1"},
		"max-waiting": {"0", "-1"}, "max-leases": {"0", "-1"}, "history": {"0"},
		"handshake-timeout": {"0s", "-1s", "x"}, "liveness-timeout": {"0s", "-1s", "10"}, "reconnect-timeout": {"0s", "-1s"},
	} {
		for _, v := range bad {
			run(t, "serve", "--listen", "127.0.0.1:0", "--"+flag, v).wants(t, 2, "", "--"+flag)
		}
	}
	help := run(t, "serve", "--help-all").stdout
	for _, line := range []string{
		"--max-key size", "(default 8KiB)", "(default 16MiB)", "(default 4GiB)", "(default 64MiB)", "(default 16777216)", "(default 16384)", "(default 4096)",
		"(default 10s)", "(default 500ms)", "(default 65536)",
	} {
		assert.Contains(t, help, line)
	}
	_, at := serve(t, "--max-key", "4", "--max-value", "8", "--max-bytes", "4KiB", "--max-conns-per-addr", "1")
	steps(t, at, []step{
		{args: "set long! v", code: 1, stderr: "a key of 5 bytes, the limit is 4"},
		{args: "set k 123456789", code: 1, stderr: "the value would have 9 bytes, the limit is 8"},
		{args: "set k v"},
	})
	holdOn(t, at)
	run(t, "get", "k", "--store", at).wants(t, 5, "", "has no room: the limit is 1 connections from one address")
}
