package testcluster

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/store"
)

// ServeStore is a child that serves a store.Memory. Its arguments are, for a durable one, its directory
// and the address at which it listens; and the one that Addressed appends.
func ServeStore(_ context.Context, arg string) error {
	m, at, args := new(store.Memory), "127.0.0.1:0", strings.Fields(arg)
	if len(args) == 3 {
		m.Dir, at = args[0], args[1]
	}
	return serveAndReport(m, at, args[len(args)-1])
}

// ServeRelay is a child that relays a store. Its arguments are the address of the store, that at
// which it listens, and the one that Addressed appends.
func ServeRelay(ctx context.Context, arg string) error {
	to := strings.Fields(arg)
	r, err := store.NewRelay(ctx, "muster://"+to[0], nil)
	if err != nil {
		return err
	}
	return serveAndReport(r, to[1], to[2])
}

// serveAndReport serves e, and sends the address of its listener to to.
func serveAndReport(e store.Backend, at, to string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	parent, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(parent, l.Addr().String()); err != nil {
		return err
	}
	if err := parent.Close(); err != nil {
		return err
	}
	return (&store.Server{Engine: e}).Serve(l)
}

// Addressed starts the child with a name, and returns it and the address that it reports, to an
// address that is appended to arg.
func Addressed(t testing.TB, name, arg string) (*launch.Process, string) {
	t.Helper()
	l := Listen(t)
	p := Start(t, name, strings.TrimSpace(arg+" "+l.Addr().String()))
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	addr, err := io.ReadAll(c)
	require.NoError(t, err)
	return p, string(addr)
}
