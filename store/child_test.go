package store_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// children are the roles that the test binary can run instead of the tests. Each gets an argument
// that ends with an address: that of the store, or that of the parent to which it reports its own
// address.
var children = testcluster.Children{
	"rank 1": childRank,
	"server": childServer,
	"relay":  childRelay,
}

// childRank runs rank 1 of 2. It takes part in barrier 1, and in barrier 2 once the key "go"
// exists.
func childRank(ctx context.Context, to string) error {
	s, err := store.Dial(ctx, to, nil)
	if err != nil {
		return err
	}
	membership, err := s.Join(ctx, wire.Contribution{Group: "g", Run: "r", Rank: 1, Size: 2}, nil)
	if err != nil {
		return err
	}
	if _, err := s.Collect(ctx, barrier(membership.Generation, 1, 1), nil); err != nil {
		return err
	}
	if _, err := s.Wait(ctx, "go"); err != nil {
		return err
	}
	_, err = s.Collect(ctx, barrier(membership.Generation, 1, 2), nil)
	return errors.Join(err, s.Close())
}

// barrier returns the vote of rank in barrier seq.
func barrier(generation uint64, rank int, seq uint64) wire.Contribution {
	return wire.Contribution{Generation: generation, Rank: rank, Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
}

// childServer serves a Memory, and reports its address to to.
func childServer(_ context.Context, to string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := sendAddr(to, l); err != nil {
		return err
	}
	return (&store.Server{Engine: new(store.Memory)}).Serve(l)
}

// childRelay runs a relay. Its arguments are the address of the store, the address on which it
// listens, and the address to which it reports that address.
func childRelay(ctx context.Context, arg string) error {
	to := strings.Fields(arg)
	r, err := store.NewRelay(ctx, "muster://"+to[0], nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", to[1])
	if err != nil {
		return err
	}
	if err := sendAddr(to[2], l); err != nil {
		return err
	}
	return (&store.Server{Engine: r}).Serve(l)
}

// sendAddr sends the address of l to to.
func sendAddr(to string, l net.Listener) error {
	parent, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	if _, err := parent.Write([]byte(l.Addr().String())); err != nil {
		return err
	}
	return parent.Close()
}

// relayProcess starts a relay of s in a process of its own that listens at at, and returns the
// process and its address.
func relayProcess(t *testing.T, s *service, at string) (*launch.Process, string) {
	t.Helper()
	return addressed(t, "relay", s.addr+" "+at+" ")
}

// serverProcess starts a server in a process of its own, and returns the process and its address.
func serverProcess(t *testing.T) (*launch.Process, string) {
	t.Helper()
	return addressed(t, "server", "")
}

// addressed starts the child of that name, and returns it and the address that it reports. The
// address to which it reports is appended to arg.
func addressed(t *testing.T, name, arg string) (*launch.Process, string) {
	t.Helper()
	l, _ := tcp(t)
	defer l.Close()
	p := testcluster.Start(t, name, arg+l.Addr().String())
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	addr, err := io.ReadAll(c)
	require.NoError(t, err)
	return p, string(addr)
}
