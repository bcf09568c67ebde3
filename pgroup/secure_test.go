package pgroup_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// papers is a directory of certificates, and a secret.
type papers string

func newPapers(t *testing.T) papers {
	t.Helper()
	dir := t.TempDir()
	if _, err := certs.Make(dir, certs.Options{Hosts: []string{"127.0.0.1", "localhost"}, Names: []string{"rank"}}); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret.pem"), []byte("0123456789abcdef\n"), 0o600))
	return papers(dir)
}

func (p papers) path(name string) string { return filepath.Join(string(p), name+".pem") }

// files returns the certificate files of a rank.
func (p papers) files(rank int) *store.TLSFiles {
	if rank == 0 {
		return &store.TLSFiles{Cert: p.path("server"), Key: p.path("server-key"), CA: p.path("ca"), RequireClient: true}
	}
	return &store.TLSFiles{Cert: p.path("rank"), Key: p.path("rank-key"), CA: p.path("ca")}
}

var secret = []byte("0123456789abcdef")

func TestGroupOverTLSWithASecret(t *testing.T) {
	p := newPapers(t)
	ranks(t, 4, func(t *testing.T) func(int) pgroup.Config {
		l, err := store.Listen(t.Context(), "0.0.0.0:0") // without Insecure
		require.NoError(t, err)
		_, port, _ := strings.Cut(l.Addr().String(), ":")
		return func(rank int) pgroup.Config {
			c := pgroup.Config{Address: "127.0.0.1:" + port, Secret: secret, TLS: p.files(rank)}
			if rank == 0 {
				c.Address, c.Listener = "", l
			}
			return c
		}
	}, func(t *testing.T, g *pgroup.Group) {
		all, err := pgroup.AllGather(t.Context(), g, g.Rank())
		ok(t, g, "allgather", err)
		equal(t, g, "allgather", all, upTo(4))
	})
}

// TestGroupThatARankMayNotJoin checks that a rank which fails authentication gets the error at
// once, though Create waits for a host that does not listen yet.
func TestGroupThatARankMayNotJoin(t *testing.T) {
	p := newPapers(t)
	l := testcluster.Listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	hosting := fails(ctx, pgroup.Config{Listener: l, Size: 2, Secret: secret})
	for want, c := range map[string]pgroup.Config{
		"this store requires a secret, and none was given: check Config.Secret (MUSTER_SECRET_FILE)": {},
		"wrong secret: check Config.Secret (MUSTER_SECRET_FILE)":                                     {Secret: []byte(strings.Repeat("x", 16))},
		"this server does not use TLS: dial it without: check Config.TLS (MUSTER_TLS_CA, ":           {Secret: secret, TLS: p.files(1)},

		"secret: 5 b": {Secret: []byte("short")},
	} {
		c.Address, c.Rank, c.Size = l.Addr().String(), 1, 2
		began := time.Now()
		_, err := pgroup.Create(within(t, 20*time.Second), c)
		says(t, err, nil, want, `create of group "world" on rank 1 of 2`)
		assert.LessOrEqual(t, time.Since(began), 2*time.Second)
	}
	cancel()
	says(t, <-hosting, pgroup.ErrCancelled, "missing rank 1")
}

// TestHostWhosePortHasAnotherSecret checks that rank 0, if its port is in use by a server with
// another secret, gets that error too, and does not wait for the port.
func TestHostWhosePortHasAnotherSecret(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Access: []store.Access{{Secret: []byte(strings.Repeat("x", 16)), Write: true}}})
	_, err := pgroup.Create(within(t, 20*time.Second), pgroup.Config{Size: 2, Address: addr, Secret: secret})
	says(t, err, store.ErrDenied, "address already in use", "wrong secret")
}

func TestHostWithBadPapers(t *testing.T) {
	p := newPapers(t)
	noKey := p.files(0)
	noKey.Key = ""
	for want, c := range map[string]pgroup.Config{
		"5 bytes are too few":                         {Secret: []byte("short")},
		"a server needs a certificate":                {TLS: noKey},
		"certificate and its key":                     {TLS: &store.TLSFiles{CA: p.path("ca")}},
		"none.pem":                                    {TLS: &store.TLSFiles{Cert: p.path("none"), Key: p.path("none")}},
		"refusing to serve beyond loopback: 0.0.0.0:": {TLS: &store.TLSFiles{Cert: p.path("server"), Key: p.path("server-key")}},
	} {
		c.Size, c.Address = 1, "0.0.0.0:0"
		_, err := pgroup.Create(t.Context(), c)
		says(t, err, nil, want)
	}
}

// TestGroupAtAURLWithASecret checks that a group at a URL with a secret and a prefix waits for the
// store, as others do.
func TestGroupAtAURLWithASecret(t *testing.T) {
	addr := testcluster.Port(t)
	var dialed, served sync.WaitGroup // each rank was refused once
	dialed.Add(2)
	served.Go(func() {
		dialed.Wait()
		l, err := store.Listen(t.Context(), addr)
		assert.NoError(t, err)
		testcluster.ServeAt(t, &store.Server{Access: []store.Access{{Secret: secret, Prefix: "jobs/", Write: true}}}, l)
	})
	at := "muster://" + addr + "/jobs?secret-file=" + url.QueryEscape(newPapers(t).path("secret"))
	gs := create(t, 2, all(pgroup.Config{Address: at}).with(func(c *pgroup.Config) { c.Dial = afterDial(dialed.Done) }))
	together(2, func(rank int) { ok(t, gs[rank], "barrier", gs[rank].Barrier(t.Context())) })
	closeAll(gs)
	served.Wait()
}
