package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
	"server": testcluster.ServeStore,
	"relay":  testcluster.ServeRelay,
}

// childRank runs rank 1 of 2. It takes part in barrier 1, and in barrier 2 once the key "go"
// exists. to is the liveness timeout, if it is not the default, and the address of the store.
func childRank(ctx context.Context, to string) error {
	options := &store.DialOptions{}
	if liveness, addr, ok := strings.Cut(to, " "); ok {
		d, err := time.ParseDuration(liveness)
		if err != nil {
			return err
		}
		options.LivenessTimeout, to = d, addr
	}
	s, err := store.Dial(ctx, to, options)
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

// relayProcess starts a relay of s in a separate process that listens at at, and returns the
// process and its address.
func relayProcess(t *testing.T, s *service, at string) (*launch.Process, string) {
	t.Helper()
	return testcluster.Addressed(t, "relay", s.addr+" "+at)
}

// serverProcess starts a server in a separate process, and returns the process and its address.
func serverProcess(t *testing.T) (*launch.Process, string) {
	t.Helper()
	return testcluster.Addressed(t, "server", "")
}
