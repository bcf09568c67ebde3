package main_test

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"

	"github.com/muster-pg/muster/wire"
)

// TestHintsForAStoreInEtcd checks that hints for a URL of an etcd name its parameters for the store:
// the flags for TLS are for etcd.
func TestHintsForAStoreInEtcd(t *testing.T) {
	t.Parallel()
	for why, want := range map[wire.Reason]string{
		wire.ReasonNoTLS:             "set store-ca in the URL",
		wire.ReasonServerCertificate: "check store-ca in the URL",
		wire.ReasonNoCertificate:     "set store-cert and store-key in the URL",
		wire.ReasonCertificate:       "check store-cert in the URL",
		wire.ReasonTLS:               "leave out store-ca, store-cert and store-key in the URL",
		wire.ReasonNoSecret:          "set --secret-file (MUSTER_SECRET_FILE)",
	} {
		assert.Equal(t, want, muster.Access("etcds://a:2379/jobs", why))
		assert.NotContains(t, muster.Access("muster://a:7070", why), "in the URL")
	}
}

// TestChangeWithoutAnAnswer checks that an error says so if the change may have been made.
func TestChangeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	at, cut := cutter(t, strings.TrimPrefix(url, "muster://"), []byte("the key"))
	add := start(t, "add", "the key", "--timeout", "2s", "--store", "muster://"+at)
	<-cut
	add.wait(t).wants(t, 5, "", "it is not known whether the change was made")
}

// cutter forwards one connection to a store until the client has sent what. Then it closes the
// connection and accepts no other.
func cutter(t *testing.T, store string, what []byte) (addr string, cut <-chan struct{}) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer l.Close()
		in, err := l.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := net.Dial("tcp", store)
		if err != nil {
			return
		}
		defer out.Close()
		go func() { _, _ = io.Copy(in, out) }()
		for buf := make([]byte, 64<<10); ; {
			n, err := in.Read(buf)
			if err != nil || bytes.Contains(buf[:n], what) {
				return
			}
			_, _ = out.Write(buf[:n])
		}
	}()
	return l.Addr().String(), done
}
