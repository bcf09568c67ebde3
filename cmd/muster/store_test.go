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

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// step is a command on a store, and its expected result.
type step struct {
	args           string // separated by spaces
	code           int
	stdout, stderr string
}

func steps(t *testing.T, url string, all []step) {
	t.Helper()
	for _, s := range all {
		t.Log("muster " + s.args)
		runIn(t, nil, []string{"MUSTER_STORE=" + url}, strings.Fields(s.args)...).wants(t, s.code, s.stdout, s.stderr)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	steps(t, url, []step{
		{args: "get a", code: 3, stderr: `there is no key "a"`},
		{args: "set a one"},
		{args: "get a", stdout: "one\n"},
		{args: "get a --raw", stdout: "one"},
		{args: "get a --wait", stdout: "one\n"},
		{args: "wait a"},
		{args: "set b/1 x --ttl 1h"},
		{args: "set b/2 y --reads 1"},
		{args: "keys", stdout: "a\nb/1\nb/2\n"},
		{args: "keys b/", stdout: "b/1\nb/2\n"},
		{args: "keys nothing"},
		{args: "keys a --long", stdout: "       REV        TTL      BYTES  KEY = VALUE\n         2          -          3  a = one\n"},
		{args: "keys a --json", stdout: `{"key":"a","value":"one","rev":2}` + "\n"},
		{args: "keys --long --json", code: 2, stderr: "choose one"},
		{args: "get b/2", stdout: "y\n"},
		{args: "get b/2", code: 3, stderr: "there is no key"},
		{args: "add n", stdout: "1\n"},
		{args: "add n 41", stdout: "42\n"},
		{args: "add n -50 --timeout 5s", stdout: "-8\n"},
		{args: "add -- n -2", stdout: "-10\n"},
		{args: "add n 1.5", code: 2, stderr: "whole number"},
		{args: "add a", code: 1, stderr: "decimal"},
		{args: "delete a b/1 c", stdout: "deleted 2 of 3\n"},
		{args: "keys", stdout: "n\n"},
		{args: "set k v --store " + url + "/jobs"},
		{args: "keys", stdout: "jobs/k\nn\n"},
		{args: "keys --store " + url + "/jobs", stdout: "k\n"},
		{args: "get j --prefix", stdout: "jobs/k\tv\n"},
		{args: "get x --prefix", code: 3, stderr: `no key starts with "x"`},
		{args: "get j --prefix --raw", code: 2, stderr: "--prefix goes with neither"},
		{args: "delete j x --prefix", stdout: "deleted 1 of 1\n"},
		{args: "push q one two"},
		{args: "pop q", stdout: "one\n"},
		{args: "pop q --wait --raw", stdout: "two"},
		{args: "pop q", code: 3, stderr: `queue "q" is empty`},
		{args: "push q", code: 2, stderr: "VALUE… is missing"},
		{args: "keys", stdout: "n\n"},
	})
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	steps(t, url, []step{
		{args: "set there v"},
		{args: "wait there not-1 not-2 --timeout 50ms", code: 4, stderr: "not there yet: not-1 not-2"},
		{args: "get not-1 --wait --timeout 50ms", code: 4, stderr: "not there yet: not-1"},
		{args: "pop q --wait --timeout 50ms", code: 4, stderr: `pop "q"`},
		{args: "watch --timeout 50ms", code: 4, stderr: "timed out"},
		{args: "get there --timeout -1s", code: 2, stderr: "negative"},
	})
}

func TestWaitEndsWhenTheKeysAreThere(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	both := start(t, "wait", "a", "b", "--store", url)
	one := start(t, "get", "b", "--wait", "--store", url)
	steps(t, url, []step{{args: "set a 1"}, {args: "set b 2"}})
	both.wait(t).wants(t, 0, "", "")
	one.wait(t).wants(t, 0, "2\n", "")
}

func TestWatch(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	live := start(t, "watch", "a/", "--count", "2", "--from", "1", "--store", url)
	steps(t, url, []step{
		{args: "set other 0"},
		{args: "set a/1 x"},
		{args: "delete a/1", stdout: "deleted 1 of 1\n"},
		{args: "set a/2 y --ttl 20ms"},
		{args: "wait a/1 --timeout 50ms", code: 4, stderr: "a/1"},
		{args: "watch a/2 --from 1 --count 2", stdout: "     5  set     a/2 = y\n     6  expire  a/2\n"},
		{
			args:   "watch a/ --from 3 --count 2 --json",
			stdout: `{"event":"delete","key":"a/1","rev":4}` + "\n" + `{"event":"set","key":"a/2","value":"y","rev":5}` + "\n",
		},
		{args: "watch --count -1", code: 2, stderr: "--count"},
		{args: "watch --from -1", code: 2, stderr: "--from"},
	})
	live.wait(t).wants(t, 0, "     3  set     a/1 = x\n     4  delete  a/1\n", "")
}

func TestWatchTooFarBack(t *testing.T) {
	t.Parallel()
	_, url := serve(t, "--history", "2")
	for range 5 {
		run(t, "set", "k", "v", "--store", url).wants(t, 0, "", "")
	}
	run(t, "watch", "--from", "1", "--store", url).wants(t, 1, "", "forgotten")
}

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
	closed := testcluster.Port(t)
	for name, c := range map[string]struct {
		url    string
		code   int
		stderr string
	}{
		"none":               {"", 2, `"muster serve" starts one`},
		"no scheme":          {"127.0.0.1:7070", 2, "did you mean muster://127.0.0.1:7070?"},
		"no port":            {"muster://127.0.0.1", 2, "port"},
		"port too high":      {"muster://127.0.0.1:70000", 2, "port"},
		"port is a name":     {"muster://127.0.0.1:x", 2, "muster://host:port"},
		"other scheme":       {"redis://127.0.0.1:6379", 2, "redis:// is not known"},
		"no process listens": {"muster://" + closed, 5, "muster serve --listen " + closed},
		"no such host":       {"muster://nobody.invalid:1", 5, "no store at nobody.invalid:1"},
		"no TCPStore":        {"tcp://127.0.0.1:1", 5, "PyTorch hosts no store at 127.0.0.1:1 (connection refused)"},
		"silence":            {"muster://" + mute(t), 5, "no answer from "},
		"another service":    {"muster://" + otherService(t), 5, "not a muster store"},
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

// TestStoreOfThisProcess checks commands with mem://, which is an empty store in the process of the
// command.
func TestStoreOfThisProcess(t *testing.T) {
	t.Parallel()
	run(t, "set", "k", "v", "--store", "mem://").wants(t, 0, "", "")
	run(t, "get", "k", "--store", "mem://").wants(t, 3, "", `no key "k"`)
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
