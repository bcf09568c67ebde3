package core_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// TestMutants checks that the simulation can detect errors: it finds a counterexample for each rule
// that testdata/mutants.txt breaks, or the test of it fails.
func TestMutants(t *testing.T) {
	if underRace {
		t.Skip("SKIPPED: each mutant is built: not with the race detector")
	}
	mutationtest.Run(t, 36, "-run", "^TestSimulation$", ".", "-sim.seeds", "6000")
}
