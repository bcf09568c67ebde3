package store_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/wire"
)

// children are the roles that the test binary can run instead of the tests. Each gets an argument
// that ends with an address: that of the store, or that of the parent to which it reports its own
// address.
var children = testcluster.Children{
	"server": testcluster.ServeStore,
	"relay":  testcluster.ServeRelay,
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
