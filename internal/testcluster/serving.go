package testcluster

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/store"
)

// ServeRelay is a child that relays a store. Its arguments are the address of the store, and the one
// that StartAt appends.
func ServeRelay(ctx context.Context, arg string) error {
	upstream, at, _ := strings.Cut(arg, " ")
	r, err := store.NewRelay(ctx, "muster://"+upstream, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	return (&store.Server{Engine: r}).Serve(l)
}

// StartAt starts the child with a name, which listens at an address of Port that is appended to arg.
// It returns when the child accepts connections.
func StartAt(t testing.TB, name, arg, addr string) *launch.Process {
	t.Helper()
	p := Start(t, name, strings.TrimSpace(arg+" "+addr))
	Eventually(t, eventTimeout, func() bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, "a child listens at "+addr)
	return p
}
