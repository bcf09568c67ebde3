package testcluster_test

import (
	"os"
	"testing"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

// These are tests of what no other test would miss: what is left over, and how a connection ends. A
// process that does not freeze, a port that another process gets, or a proxy that loses bytes fails the
// tests that use it.

// leak makes the test binary a child that leaves something over.
const leak = "TESTCLUSTER_LEAK"

func TestMain(m *testing.M) {
	if os.Getenv(leak) != "" {
		launch.ExitWithParent() // what listens for the parent's end does not count
	}
	testcluster.Leaks(m)
}
