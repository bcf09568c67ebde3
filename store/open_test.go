package store_test

import (
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func TestOpenByURL(t *testing.T) {
	f := newTLSFiles(t)
	plain := serve(t, &store.Server{}, tcp)
	secret := serve(t, &store.Server{Access: []store.Access{all("s")}}, tcp)
	mutual := serve(t, &store.Server{TLS: serverTLS(t, f.requiring())}, tcp)
	both := serve(t, &store.Server{TLS: serverTLS(t, f.server()), Access: []store.Access{all("s")}}, tcp)
	require.NoError(t, os.WriteFile(f.path("secret"), append(secretOf("s"), '\n'), 0o600))
	ca, cert, key, file := url.QueryEscape(f.path("ca")), url.QueryEscape(f.path("trainer")), url.QueryEscape(f.path("trainer-key")), url.QueryEscape(f.path("secret"))
	ipv6 := plain
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		_ = l.Close()
		ipv6 = serve(t, new(store.Server), listening("[::1]:0"))
	} else {
		t.Log("no IPv6 on this machine: ", err)
	}
	for _, rawurl := range []string{
		plain.addr, plain.addr + "/jobs", plain.addr + "?tls=false", ipv6.addr,
		secret.addr + "?secret-file=" + file, secret.addr + "/jobs?secret-file=" + file,
		mutual.addr + "?ca=" + ca + "&cert=" + cert + "&key=" + key,
		mutual.addr + "/jobs?tls=true&server-name=node7&ca=" + ca + "&cert=" + cert + "&key=" + key,
		both.addr + "?ca=" + ca + "&secret-file=" + file,
	} {
		for _, open := range []func() (*store.Store, error){
			func() (*store.Store, error) { return store.Open(bounded(t), "muster://"+rawurl) },
			func() (*store.Store, error) { return store.DialURL(bounded(t), "muster://"+rawurl, nil) },
		} {
			c, err := open()
			require.NoError(t, err, rawurl)
			works(t, c)
			require.NoError(t, c.Close())
		}
	}
	_, err := plain.client(t).Get(bounded(t), "jobs/works")
	require.NoError(t, err, "the path is a prefix")

	for _, rawurl := range []string{"mem:", "mem://", "mem:///jobs/1", "muster://" + plain.addr + "/"} {
		c, err := store.Open(bounded(t), rawurl)
		require.NoError(t, err, rawurl)
		works(t, c)
		require.NoError(t, c.Close())
		_, err = c.Get(bounded(t), "works")
		require.ErrorIs(t, err, store.ErrClosed, rawurl)
	}

	// The options set what the URL does not.
	c, err := store.DialURL(bounded(t), "muster://"+both.addr, &store.DialOptions{Secret: secretOf("s"), TLS: f.anonymous().Client})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = store.DialURL(bounded(t), "muster://"+both.addr+"?tls=false", &store.DialOptions{Secret: secretOf("s"), TLS: f.anonymous().Client})
	require.ErrorContains(t, err, "this server requires TLS")
	_, err = store.Open(bounded(t), "muster://"+mutual.addr+"?tls=true")
	require.ErrorContains(t, err, "not trusted", "the system's authorities")
}

// TestOpenRefusesURLs checks the error of each URL of testdata/urls.txt, which Open, DialURL and NewRelay
// refuse.
func TestOpenRefusesURLs(t *testing.T) {
	datadriven.RunTest(t, "testdata/urls.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for rawurl := range strings.FieldsSeq(d.Input) {
			_, opened := store.Open(bounded(t), rawurl)
			_, dialed := store.DialURL(bounded(t), rawurl, nil)
			_, relayed := store.NewRelay(bounded(t), rawurl, nil)
			for _, err := range []error{opened, dialed, relayed} {
				require.ErrorIs(t, err, store.ErrInvalid, rawurl)
				require.NotContains(t, err.Error(), "password")
			}
			fmt.Fprintln(&out, opened)
			if dialed.Error() != opened.Error() {
				fmt.Fprintln(&out, "DialURL:", dialed)
			}
		}
		return out.String()
	})
	_, err := store.NewRelay(bounded(t), "muster://127.0.0.1:1/prefix", nil)
	require.ErrorIs(t, err, store.ErrInvalid, "of a part of a store")
	_, err = store.NewRelay(bounded(t), "muster://127.0.0.1:1", nil)
	require.ErrorIs(t, err, store.ErrUnavailable)
}

func secretOf(c string) []byte { return []byte(strings.Repeat(c, 16)) }

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	long := strings.Repeat("x", 4096)
	for text, want := range map[string]string{
		"0123456789abcdef":     "0123456789abcdef",
		"0123456789abcdef\n":   "0123456789abcdef",
		"0123456789abcdef\r\n": "0123456789abcdef",
		" 0123456789abcdef \n": " 0123456789abcdef ",
		"0123456789abcdef\n\n": "0123456789abcdef\n",
		long + "\r\n":          long,
	} {
		got, err := store.ReadSecret(write("good", text))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for text, want := range map[string]string{
		"":                  "0 bytes are too few",
		"0123456789abcde\n": "15 bytes are too few, it needs 16",
		long + "x":          "more than 4096",
		long + "xxxxxxx":    "more than 4096",
		long + "\nx":        "more than 4096",
	} {
		file := write("bad", text)
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, file)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "(umask 077; head -c 32 /dev/urandom | base64 > secret)")
	}
	_, err := store.ReadSecret(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = store.ReadSecret(dir)
	require.Error(t, err)
	for _, mode := range []fs.FileMode{0o644, 0o640, 0o604, 0o620, 0o601} {
		file := write("open", "0123456789abcdef")
		require.NoError(t, os.Chmod(file, mode))
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid, mode)
		require.ErrorContains(t, err, "chmod 600 "+file)
	}
}
