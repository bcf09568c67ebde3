package etcdlog_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// TestMutants checks that the simulation detects errors: it finds a counterexample for each rule that
// testdata/mutants.txt breaks, or the test of it fails.
func TestMutants(t *testing.T) {
	mutationtest.Run(t, 18, "-run", "^TestSimulation$", ".", "-sim.seeds", "500")
}
