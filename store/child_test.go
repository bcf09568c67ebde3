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

// children are what the test binary can be instead of the tests; they are given an address: of the store, or of who wants to know the child's.
var children = testcluster.Children{
	"rank 1": childRank,
	"server": childServer,
	"relay":  childRelay,
}

// childRank is rank 1 of 2: it is in barrier 1, and in barrier 2 when there is the key "go".
func childRank(ctx context.Context, to string) error {
	s, err := store.Dial(ctx, to, nil)
	if err != nil {
		return err
	}
	roll, err := s.Join(ctx, wire.Contribution{Group: "g", Run: "r", Rank: 1, Size: 2}, nil)
	if err != nil {
		return err
	}
	if _, err := s.Collect(ctx, barrier(roll.Generation, 1, 1), nil); err != nil {
		return err
	}
	if _, err := s.Wait(ctx, "go"); err != nil {
		return err
	}
	_, err = s.Collect(ctx, barrier(roll.Generation, 1, 2), nil)
	return errors.Join(err, s.Close())
}

// barrier is rank's vote.
func barrier(generation uint64, rank int, seq uint64) wire.Contribution {
	return wire.Contribution{Generation: generation, Rank: rank, Seq: seq, Verb: "barrier", Root: -1, Want: wire.WantNothing}
}

// childServer serves a Memory, and says where.
func childServer(_ context.Context, to string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := tellAddr(to, l); err != nil {
		return err
	}
	return (&store.Server{Engine: new(store.Memory)}).Serve(l)
}

// childRelay is a relay: of the store, at the address, which it tells another one, that arg has.
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
	if err := tellAddr(to[2], l); err != nil {
		return err
	}
	return (&store.Server{Engine: r}).Serve(l)
}

// tellAddr tells where l listens.
func tellAddr(to string, l net.Listener) error {
	parent, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	if _, err := parent.Write([]byte(l.Addr().String())); err != nil {
		return err
	}
	return parent.Close()
}

// relayProcess is a relay of s that is a process of its own, at an address, and that address.
func relayProcess(t *testing.T, s *service, at string) (*launch.Process, string) {
	t.Helper()
	return addressed(t, "relay", s.addr+" "+at+" ")
}

// serverProcess is a server that is a process of its own, and its address.
func serverProcess(t *testing.T) (*launch.Process, string) {
	t.Helper()
	return addressed(t, "server", "")
}

// addressed is a child of that name that tells its address. Behind arg it is told to whom.
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
